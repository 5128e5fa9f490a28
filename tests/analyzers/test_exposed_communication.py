"""exposed-communication: collectives beside which nothing computes, and idle of work that waits for them."""

import pytest

from diagnose.changes.common.prescribe import prescribe
from diagnose.model.diagnosis import Finding

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_TO_ALL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def reduced(recording, *, name=ALL_REDUCE, start=400, end=900):
    """Return a step of 1000 µs: compute to 600, a collective from ``start`` to ``end``, compute from 900."""
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 600, launched=(-20, -15))
    r.kernel(name, start, end, stream=20, launched=(-14, -11))
    r.kernel("adam", 900, 1000, launched=(-10, -5))
    return r


def test_only_what_no_kernel_hides_is_lost(recording):
    r = reduced(recording)
    assert r.booked() == {}
    assert r.tables().partition.exposed_communication == pytest.approx(0.3)
    finding = r.find("exposed-communication")
    assert (finding.lost_ns, finding.count, finding.total_ns, finding.median_ns) == (300_000, 1, 300_000, 500_000)
    assert finding.evidence[0] == (
        "1.0 collectives a step, median 0.500 ms; 60 % of their time is exposed: 300 µs of the step."
    )


def test_hidden_collectives_cost_nothing(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 1000, launched=(-20, -15))
    r.kernel(ALL_REDUCE, 100, 900, stream=20, launched=(-14, -11))
    assert r.find("exposed-communication") is None


@pytest.mark.parametrize(("alone", "fires"), [(9, False), (12, True)])
def test_less_than_a_hundredth_of_the_step_is_not_listed(recording, alone, fires):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 600, launched=(-20, -15))
    r.kernel(ALL_REDUCE, 400, 600 + alone, stream=20, launched=(-14, -11))
    r.kernel("adam", 600 + alone, 1000, launched=(-10, -5))
    assert any(f.rule == "exposed-communication" for f in r.diagnosis().findings) == fires


def test_queued_work_that_waits_for_a_collective(recording):
    r = reduced(recording, end=850)
    assert r.booked() == {"exposed-communication": 50_000}
    finding = r.find("exposed-communication")
    assert (finding.lost_ns, finding.total_ns) == (300_000, 300_000)
    assert finding.examples[0].before == ALL_REDUCE
    assert finding.examples[0].after == "adam"


def test_a_wait_for_a_collective_ends_when_the_collective_does(recording):
    """For 100 µs nothing runs on any stream: whatever held the queued task, it was not the collective."""
    r = reduced(recording, end=800)
    assert r.booked() == {"unexplained-device": 100_000}
    assert r.find("exposed-communication").lost_ns == 200_000


def repeated(recording, *lengths, detail="allreduce|Float|2", last=1_000_000):
    """Return a step of 2000 µs in which one reduction of as many bytes comes after the other."""
    r = recording()
    r.step(1, 0, 2000)
    at = 0.0
    for n, length in enumerate(lengths):
        r.kernel("gemm", at, at + 100, launched=(-50 + n, -49.5 + n))
        row = r.kernel(ALL_REDUCE, at + 100, at + 100 + length, stream=20, launched=(-30 + n, -29.5 + n))
        size = last if n == len(lengths) - 1 else 1_000_000
        row.values |= {"detail": r._name(detail), "size": size}
        at += 100 + length
    r.kernel("adam", at, 2000, launched=(-10, -5))
    return r


def test_a_collective_takes_no_longer_than_another_with_as_many_bytes(recording):
    """It takes 100 µs twice and 700 once: for 600 of 900 µs this rank waits for others, and no change saves these."""
    found = repeated(recording, 100, 100, 700).find("exposed-communication")
    assert found.lost_ns == 900_000
    assert found.title == "Collectives wait for other ranks"
    assert found.facts["awaits_ranks"] == pytest.approx(6 / 9)
    text = "Of this, 600 µs is beyond what collectives of the same kind with as many bytes or more take"
    assert text in " ".join(found.evidence)
    assert prescribe(found, 2e6) == []


def test_changes_of_the_exchange_save_what_is_no_waiting(recording):
    found = repeated(recording, 200, 200, 600).find("exposed-communication")
    assert (found.lost_ns, found.facts["awaits_ranks"]) == (1_000_000, pytest.approx(0.4))
    least, most = next(p for p in prescribe(found, 2e6) if p.id == "compress-gradients").saves_ns
    assert (least, most) == (pytest.approx(0.2 * 600_000), pytest.approx(0.5 * 600_000))


@pytest.mark.parametrize(("size", "waits_ns"), [(1_000, 600_000), (1_000_000, 600_000), (1_000_001, None)])
def test_fewer_bytes_take_no_longer_than_more_do(recording, size, waits_ns):
    """The last reduction takes 700 µs and moves ``size`` elements; the others 100 µs and 1,000,000."""
    found = repeated(recording, 100, 100, 700, last=size).find("exposed-communication")
    assert found.facts.get("awaits_ranks") == (pytest.approx(waits_ns / found.lost_ns) if waits_ns else None)


@pytest.mark.parametrize(
    ("lengths", "detail"),
    [((100, 100, 200), "allreduce|Float|2"), ((700,), "allreduce|Float|2"), ((100, 100, 700), "")],
    ids=["no outlier", "nothing to compare with", "bytes not known"],
)
def test_what_does_not_show_to_be_waiting(recording, lengths, detail):
    found = repeated(recording, *lengths, detail=detail).find("exposed-communication")
    assert "awaits_ranks" not in found.facts
    assert found.title == "Collectives are not hidden under computation"


def test_on_the_same_stream_nothing_waits_for_another(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel(ALL_REDUCE, 0, 600, launched=(-20, -15))
    r.kernel("adam", 605, 1000, launched=(-10, -5))
    assert r.booked() == {"kernel-latency": 5_000}


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float",
        "rcclGenericKernel",
        "void vllm::cross_device_reduce_1stage<bf16>",
        "one_shot_all_reduce_kernel",
        "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*)",
    ],
)
def test_names_of_collectives(recording, name):
    assert reduced(recording, name=name).find("exposed-communication") is not None


def test_sixteen_bits_are_prescribed_for_large_collectives(recording):
    (p,) = reduced(recording).prescribe("exposed-communication")
    assert p.id == "compress-gradients"
    assert p.title == "Send gradients in 16 bits"
    assert 'install(model, "bf16")' in p.after
    assert p.saves_ns == (60_000, 150_000)
    assert p.safety.startswith("may change the numbers: 16-bit gradients round")


def test_an_exchange_gets_other_advice(recording):
    (p,) = reduced(recording, name=ALL_TO_ALL).prescribe("exposed-communication")
    assert p.id == "overlap-exchange"
    assert "all_to_all_single" in p.before
    assert "async_op=True" in p.after
    assert p.safety == "same numbers"
    assert p.saves_ns == (30_000, pytest.approx(240_000))


def test_an_exchange_is_also_known_by_the_operator_that_launched_it(recording):
    r = recording()
    r.step(1, 0, 1000)
    r.op("c10d::alltoall_base_", 0, 20)
    r.kernel("ncclDevKernel_Generic_4", 20, 520, stream=20, launched=(5, 10))
    r.kernel("gemm", 520, 1000, launched=(11, 15))
    assert [p.id for p in r.prescribe("exposed-communication")] == ["overlap-exchange"]


def gathered(recording, around="ExpertMajorAllToAll"):
    """Return a step of 1000 µs with an all-gather inside of a function; the next kernel is late."""
    r = recording()
    r.step(1, 0, 1000)
    r.op(around, 0, 20)
    r.op("c10d::_allgather_base_", 2, 18)
    r.op("record_param_comms", 3, 17)
    gather = r.kernel("ncclDevKernel_AllGather_RING_LL", 20, 520, stream=20, launched=(5, 10))
    gather.values["detail"] = r._name("_allgather_base|Long|2")
    r.op("aten::sum", 30, 60)
    r.kernel("reduce", 570, 1000, launched=(40, 50))
    return r


def test_the_place_is_the_collectives_not_that_of_the_kernel_that_waits(recording):
    finding = gathered(recording).find("exposed-communication")
    assert [w.op for w in finding.where] == ["c10d::_allgather_base_"]
    assert finding.evidence[1] == "The most exposed: _allgather_base."


@pytest.mark.parametrize(("around", "ids"), [("ExpertMajorAllToAll", ["overlap-exchange"]), ("FSDP::unshard", [])])
def test_an_all_gather_is_named_by_its_kernel_not_by_the_operator_around_it(recording, around, ids):
    found = [p for p in gathered(recording, around).prescribe("exposed-communication") if p.id == "overlap-exchange"]
    assert [p.id for p in found] == ids


@pytest.mark.parametrize(("num", "length", "left"), [(11, 10, 0), (10, 10, 100), (31, 100, 3100)])
def test_many_small_collectives_have_a_rule_of_their_own(recording, num, length, left):
    r = recording()
    r.step(1, 0, 4000)
    for i in range(num):
        r.kernel(ALL_REDUCE, 100 * i, 100 * i + length, stream=20, launched=(-100 + i, -99.5 + i))
    finding = r.find("exposed-communication")
    assert (finding.lost_ns if finding else 0) == pytest.approx(left * 1000)


def on_host(recording, name="gloo:all_reduce"):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 600)
    r.annotation(name, 500, 1000, thread="gloo")
    return r


def test_without_a_device_a_gloo_collective_beside_no_operator(recording):
    r = on_host(recording)
    assert r.booked() == {"operators": 600_000, "exposed-communication": 400_000}
    finding = r.find("exposed-communication")
    assert finding.lost_ns == 400_000
    assert finding.evidence[1] == "1.0 collectives of a host backend a step."
    assert r.diagnosis().dominant == "exposed-communication"


def test_without_a_device_a_barrier_is_a_host_collective(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 600)
    r.annotation("gloo:barrier", 600, 1000)
    assert r.booked() == {"operators": 600_000, "host-collective": 400_000}


def test_without_a_device_a_hidden_collective_costs_nothing(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 1000)
    r.annotation("gloo:all_reduce", 100, 900, thread="gloo")
    assert r.booked() == {"operators": 1_000_000}


def test_without_a_device_collectives_outside_the_window_do_not_count(recording):
    r = on_host(recording)
    r.annotation("gloo:all_reduce", -900, -100, thread="gloo")
    assert r.find("exposed-communication").evidence[1] == "1.0 collectives of a host backend a step."


@pytest.mark.parametrize(("has_device", "shares", "cores"), [(True, (0.2, 0.9), False), (False, (0.0, 0.5), True)])
def test_buckets_that_start_late_are_prescribed_smaller(has_device, shares, cores):
    facts = {"ddp": {"bucket_cap_mb": 500.0}, "has_device": has_device}
    p, _ = prescribe(Finding("exposed-communication", "", 100.0, facts=facts), 1000.0)
    assert p.id == "overlap-gradients"
    assert p.saves_ns == (pytest.approx(100 * shares[0]), pytest.approx(100 * shares[1]))
    assert ("cores" in p.needs) is cores


@pytest.mark.parametrize(
    ("flags", "left", "says"),
    [
        ({"cores": 1, "num_threads": 1}, [], True),
        ({"cores": 4, "num_threads": 1}, ["overlap-gradients", "compress-gradients"], False),
        ({"cores": 2}, ["overlap-gradients", "compress-gradients"], False),
    ],
)
def test_without_a_free_core_nothing_is_moved_beside_computing(recording, flags, left, says):
    r = on_host(recording)
    r.with_info(flags={"ddp": {"bucket_cap_mb": 500.0}, **flags})
    finding = r.find("exposed-communication")
    assert [p.id for p in prescribe(finding, 1e6)] == left
    assert ("on all of its cores" in finding.evidence[1]) is says


@pytest.mark.parametrize(
    ("info", "num", "first"),
    [
        ({"flags": {}}, 8, "bucket-gradients"),
        ({"flags": {}}, 7, "compress-gradients"),
        ({"flags": {"ddp": {"bucket_cap_mb": 25}}}, 8, "compress-gradients"),
        (None, 8, "compress-gradients"),
    ],
)
def test_a_script_that_reduces_many_tensors_itself_is_told_to_bucket_them(recording, info, num, first):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 200)
    for i in range(num):
        r.annotation("gloo:all_reduce", 200 + i * 100, 290 + i * 100, thread="gloo")
    if info is not None:
        r.with_info(**info)
    p = r.prescribe("exposed-communication")[0]
    assert p.id == first
    if first == "bucket-gradients":
        assert "DistributedDataParallel(model, bucket_cap_mb=25" in p.after


def reducing(recording, num_bytes, took, *, ranks=8):
    """Return a step that computes for 400 µs and then reduces so many bytes of bfloat16 among the ranks."""
    r = recording()
    r.world_size = ranks
    r.step(1, 0, 400 + took)
    r.kernel("gemm", 0, 400, launched=(-20, -15))
    row = r.kernel(ALL_REDUCE, 400, 400 + took, stream=20, launched=(-10, -5))
    row.values |= {"detail": r._name(f"allreduce|BFloat16|{ranks}"), "size": num_bytes // 2}
    return r


def test_a_reduction_that_moves_little_for_its_time(recording):
    # 17.6 MB in 9 ms: 1.96 GB/s, of which a ring of eight carries 14 / 8 on each link
    r = reducing(recording, 17_600_000, 9_000)
    finding = r.find("exposed-communication")
    assert finding.facts["bus_gbps"] == pytest.approx(3.422, abs=1e-3)
    assert finding.evidence[1].startswith(
        "Collectives of 1 MB and more move 3.4 GB/s (bus bandwidth), such as all_reduce of 17.6 MB in 9.00 ms;"
    )
    p = next(p for p in r.prescribe("exposed-communication") if p.id == "check-links")
    assert p.title == "Find out why collectives move only 3.4 GB/s: compare all ranks, then measure the links"
    assert p.predicted_step_ns is None


@pytest.mark.parametrize(
    ("num_bytes", "took", "ranks"),
    [
        (17_600_000, 6_000, 8),  # 5.1 GB/s
        (1_000_000, 9_000, 8),  # its start-up
        (17_600_000, 9_000, 1),  # not known among how many
    ],
)
def test_rates_that_show_nothing(recording, num_bytes, took, ranks):
    assert "bus_gbps" not in reducing(recording, num_bytes, took, ranks=ranks).find("exposed-communication").facts
