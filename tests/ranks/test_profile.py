"""The profile of a rank: what it holds of one step, and that it survives being sent."""

import zlib
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from diagnose.analyzers import TRAITS, warm_up
from diagnose.errors import InputError
from diagnose.model.capture import Capture
from diagnose.pipeline.rank import profile_rank
from diagnose.ranks.comparison import compare_ranks
from diagnose.ranks.profile import COMMUNICATION, JobProfile, LineTime, RankProfile

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


@pytest.fixture
def profile(recording):
    """Return a rank that computes for 300 µs, is inside a collective until 900 and computes to 1000."""
    r = recording()
    r.step(7, 0, 1000)
    r.kernel("gemm", 0, 300, launched=(0, 5))
    r.kernel(NCCL, 300, 900, launched=(10, 15), stream=9)
    r.kernel("adam", 900, 1000, launched=(20, 22))
    return profile_rank(Capture(replace(r.trace, rank=3, world_size=8)))


def same(one: RankProfile, other: RankProfile) -> bool:
    return repr(one) == repr(other)


def test_the_time_of_a_step_is_divided_by_cause_up_to_the_last_collective_and_behind_it(profile):
    spent = dict(zip(profile.causes, profile.spent.tolist(), strict=True))
    assert spent == {"compute-forward": [300_000, 100_000], COMMUNICATION: [600_000, 0]}
    assert profile.bounds.tolist() == [profile.collectives.end[0]]
    assert (profile.rank, profile.world_size, profile.step_number.tolist()) == (3, 8, [7])


def test_a_collective_that_nothing_hides(profile):
    c = profile.collectives
    assert (c.length.tolist(), c.covered.tolist(), c.alone.tolist()) == ([600_000], [0], [600_000])
    assert [k.name for k in profile.kinds] == ["all_reduce"]


def test_a_collective_that_computation_covers_at_its_begin(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 500, launched=(0, 5))
    r.kernel(NCCL, 300, 900, launched=(10, 15), stream=9)
    c = profile_rank(Capture(r.trace)).collectives
    assert (c.covered.tolist(), c.alone.tolist()) == ([200_000], [400_000])


def beside_a_collective(recording, blocks=None, launched=800):
    """Return the profile of a rank whose collective runs from 300 to 700 µs, and whose next kernel is launched late."""
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 300, launched=(0, 5))
    r.kernel(NCCL, 300, 700, launched=(10, 15), stream=9)
    r.kernel("adam", launched + 10, 1000, launched=(launched, launched + 5))
    if blocks is None:
        r.gc(20, launched)
    elif blocks:
        r.runtime(blocks, 20, 700)
    return profile_rank(Capture(r.trace))


def test_what_is_launched_late_beside_a_collective_is_the_ranks_own_time(recording):
    p = beside_a_collective(recording)
    spent = {cause: ns for cause, ns in zip(p.causes, p.spent[:, 0].tolist(), strict=True) if ns}
    assert spent == {"compute-forward": 300_000, "gc-pause": 400_000}
    assert (p.collectives.alone.tolist(), p.collectives.unlaunched.tolist()) == ([400_000], [400_000])
    assert p.idle_by_cause["gc-pause"] == pytest.approx(0.1)  # of 1000 µs those in which the device was idle


def test_a_copy_that_nothing_hides_is_no_idle_time(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 300, launched=(0, 5))
    r.copy("Memcpy HtoD (Pageable -> Device)", 400, 600, launched=(10, 15))
    r.kernel("adam", 700, 1000, launched=(620, 625))
    p = profile_rank(Capture(r.trace))
    assert p.partition.exposed_copy == pytest.approx(0.2)
    assert sum(p.idle_by_cause.values()) == pytest.approx(p.partition.idle)
    spent = dict(zip(p.causes, p.spent.sum(axis=1).tolist(), strict=True))
    assert spent["exposed-copy"] >= 200_000  # of the rank's own time it is a part all the same


def test_what_the_host_did_is_looked_at_once_also_where_time_beside_collectives_is_divided(recording, monkeypatch):
    seen = []
    find = warm_up.claim

    def claim(t, left):
        seen.append((t.work_layers, len(t.tasks.row)))
        return find(t, left)

    monkeypatch.setattr(warm_up, "claim", claim)
    beside_a_collective(recording)
    (layers, num_tasks), (same_layers, num_computing) = seen  # with collectives and without them
    assert same_layers is layers
    assert num_computing < num_tasks


@pytest.mark.parametrize(("blocks", "launched"), [("cudaStreamSynchronize", 800), ("", 720)])
def test_a_host_that_waits_for_the_collective_waits_also_without_a_call(recording, blocks, launched):
    p = beside_a_collective(recording, blocks, launched)
    spent = {cause: ns for cause, ns in zip(p.causes, p.spent[:, 0].tolist(), strict=True) if ns}
    assert spent == {"compute-forward": 300_000, COMMUNICATION: 400_000}
    assert (p.collectives.alone.tolist(), p.collectives.unlaunched.tolist()) == ([400_000], [0])


def test_a_collective_beside_another_one_is_not_hidden_by_computation(recording):
    ranks = []
    for number in range(2):
        r = recording()
        for n in range(2):
            r.step(n, 1000 * n, 1000 * (n + 1))
            r.kernel("gemm", 1000 * n, 1000 * n + 400, launched=(1000 * n, 1000 * n + 5))
            r.kernel(NCCL, 1000 * n + 300, 1000 * n + 900, launched=(1000 * n + 10, 1000 * n + 15), stream=9)
            other = NCCL.replace("AllReduce", "AllGather")
            r.kernel(other, 1000 * n + 300, 1000 * n + 900, launched=(1000 * n + 20, 1000 * n + 25), stream=10)
        ranks.append(profile_rank(Capture(replace(r.trace, rank=number, world_size=2))))
    found = compare_ranks(JobProfile.of(ranks), TRAITS).collectives
    assert [(kind.name, kind.hidden_share) for kind in found] == [
        ("all_reduce", pytest.approx(1 / 6)),
        ("all_gather", pytest.approx(1 / 6)),
    ]


@pytest.mark.parametrize(("call_us", "host_us"), [(80, 400), (300, 100)])
def test_the_time_of_a_host_that_is_ahead_of_its_device_does_not_hold_calls_that_block(recording, call_us, host_us):
    r = recording()
    for n in range(3):
        r.step(n, 400 * n, 400 * (n + 1))
        r.kernel("gemm", 1000 * n, 1000 * n + 600, launched=(400 * n + 10, 400 * n + 15))
        r.kernel(NCCL, 1000 * n + 600, 1000 * (n + 1), launched=(400 * n + 20, 400 * n + 25), stream=9)
        r.runtime("cudaMemcpyAsync", 400 * n + 50, 400 * n + 50 + call_us)
    p = profile_rank(Capture(r.trace))
    assert p.host_time.tolist()[-2:] == [host_us * 1000] * 2


@pytest.mark.parametrize(
    ("waits", "busy_us"),
    [
        ("cudaStreamSynchronize", 700),  # 300 in operators or waited for by the device, and what the host does ahead
        ("c10d::barrier", 700),
        ("aten::addcmul", 1000),
    ],
)
def test_a_host_that_is_ahead_within_its_step_takes_what_it_is_seen_to_do(recording, waits, busy_us):
    """The device waits in a collective from 300 to 900 µs; the host goes on, and waits from 600 on."""
    r = recording()
    for n in range(3):
        at = 1000 * n
        r.step(n, at, at + 1000)
        r.op("aten::mm", at, at + 300)
        r.kernel("gemm", at + 110, at + 300, launched=(at + 100, at + 105))
        r.kernel(NCCL, at + 300, at + 900, launched=(at + 290, at + 295), stream=9)
        r.op("aten::add", at + 310, at + 590)
        r.kernel("adam", at + 900, at + 1000, launched=(at + 400, at + 405))
        if waits.startswith("cuda"):
            r.op("aten::item", at + 595, at + 905)
            r.runtime(waits, at + 600, at + 900)
        else:
            r.op(waits, at + 600, at + 900)
        r.op("aten::mul", at + 905, at + 1000)
    p = profile_rank(Capture(r.trace))
    assert p.host_time[-1] == pytest.approx(busy_us * 1000, abs=20_000)


def test_operators_that_wait_for_the_device_do_not_show_how_fast_the_host_is(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 100)
    r.kernel("gemm", 100, 700, launched=(50, 55))
    r.op("aten::item", 200, 720)
    r.runtime("cudaStreamSynchronize", 210, 710)
    p = profile_rank(Capture(r.trace))
    assert p.operators.name.tolist() == [zlib.crc32(b"aten::mm")]


def test_it_survives_being_sent(profile):
    profile = replace(profile, lines=(LineTime("compute-forward", "train.py", 7, "main", "y = model(x)", 2.5e6),))
    assert same(RankProfile.from_bytes(profile.to_bytes()), profile)


def test_kernels_keep_their_names(profile):
    names = dict(zip(profile.kernels.name.tolist(), profile.kernel_names, strict=True))
    assert names == {zlib.crc32(name.encode()): name for name in ("gemm", "adam")}
    assert RankProfile.from_bytes(profile.to_bytes()).kernel_names == profile.kernel_names


def test_the_lines_that_were_sampled_survive_too(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000)
    r.samples_every(100, 0, 1000, ("train.py", 7, "main"), 1)
    sent = RankProfile.from_bytes(profile_rank(r.capture()).to_bytes())
    assert sent.lines == (LineTime("compute-forward", "train.py", 7, "main", "", 1_000_000.0),)


def test_numbers_of_numpy_are_sent_as_numbers(profile):
    sent = replace(profile, step_ns=np.float64(2.5), ready_share=np.float64(0.25), rank=np.int64(3))
    read = RankProfile.from_bytes(sent.to_bytes())
    assert (read.step_ns, read.ready_share, read.rank) == (2.5, 0.25, 3)


@pytest.mark.parametrize("data", [b"", b"garbage", b"x\x9c\x03\x00\x00\x00\x00\x01"])
def test_other_bytes_are_refused_in_a_sentence(data):
    with pytest.raises(InputError, match="summary of a rank is damaged"):
        RankProfile.from_bytes(data)


def test_a_small_summary_that_expands_to_gigabytes_is_refused(profile):
    bomb = zlib.compress(bytes(2 << 20))
    assert len(bomb) < 3000
    with pytest.raises(InputError, match="summary of a rank is damaged"):
        RankProfile.from_bytes(bomb, 1 << 20)
    assert same(RankProfile.from_bytes(profile.to_bytes(), 1 << 20), profile)


def test_a_summary_of_another_version_is_named_as_that():
    with pytest.raises(InputError, match=r"another version of diagnose \(format 9, not 5\)"):
        RankProfile.from_bytes(zlib.compress(msgspec.msgpack.encode((9, {}))))


@pytest.mark.parametrize(
    "changed",
    [
        {"bounds": np.arange(7)},
        {"spent": np.zeros((1, 9), np.int64)},
        {"groups": ()},
        {"kinds": ()},
        {"path": 5},
    ],
)
def test_a_summary_whose_parts_do_not_fit_is_refused(profile, changed):
    with pytest.raises(InputError, match="summary of a rank is damaged"):
        RankProfile.from_bytes(replace(profile, **changed).to_bytes())


def test_parts_of_a_job_merge_in_any_order(profile):
    a, b, c = (JobProfile.of([replace(profile, rank=n)], [f"rank {n + 5} is missing"]) for n in range(3))
    left, right = a.merge(b).merge(c), c.merge(a.merge(b))
    assert [p.rank for p in left.ranks] == [p.rank for p in right.ranks] == [0, 1, 2]
    assert left.missing == right.missing == ("rank 5 is missing", "rank 6 is missing", "rank 7 is missing")


def test_hundreds_of_collectives_take_a_few_kilobytes(profile):
    many = 300
    rng = np.random.default_rng(1)
    start = np.cumsum(rng.integers(500_000, 3_000_000, many))
    length = rng.integers(200_000, 900_000, many)
    c = profile.collectives
    columns = {
        "kind": np.zeros(many, np.int32),
        "step": np.zeros(many, np.int32),
        "sequence": np.arange(many),
        "start": start,
        "length": length,
        "covered": length // 2,
        "alone": length // 2,
        "hidden": length // 2,
        "queued": np.zeros(many, np.int64),
        "unlaunched": np.zeros(many, np.int64),
    }
    packed = replace(profile, collectives=replace(c, **columns)).to_bytes()
    assert len(packed) < 10_000
    assert RankProfile.from_bytes(packed).collectives.start.tolist() == start.tolist()
