"""Who is late: ranks given by what they spend in each step."""

from dataclasses import replace

import numpy as np
import pytest

from diagnose.analyzers import TRAITS
from diagnose.analyzers.straggler import find_in_all
from diagnose.ranks.comparison import compare_ranks, job_of
from diagnose.ranks.profile import CollectiveKind, Group, JobProfile, Speeds
from diagnose.ranks.waits import median_of_others
from tests.ranks.conftest import NOISE, steps


def test_of_two_ranks_the_waits_are_not_halved(compared):
    found = job_of(compared(steps(20), steps(20, loading=5.0, shift=1)))
    assert found.late_ranks == (1,)
    assert found.late_ns == pytest.approx(5e6, rel=0.02)
    assert found.saved_ns == pytest.approx(5e6, rel=0.02)
    assert (found.cause, found.cause_ns) == ("data-stall", pytest.approx(5e6))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("of_late", "of_others"), [((0, 7), (1, 7)), ((0, 7), (0, 6)), ((1, 7), (0, 7))])
def test_steps_that_only_the_late_rank_recorded_are_not_compared(make_profile, of_late, of_others):
    ends = np.cumsum([25.5] * 7)
    ranks = []
    for n in range(4):
        first, last = of_late if n == 2 else of_others
        spent = steps(20, loading=5.0 if n == 2 else 0.0, num=7, shift=n)[first:last]
        begins = float(ends[first - 1]) if first else 0.0
        number = np.arange(first, last)
        ranks.append(make_profile(n, spent, ends[first:last].tolist(), begins=begins, step_number=number))
    found = compare_ranks(JobProfile.of(ranks), TRAITS)
    assert (found.reason.cause, found.reason.more_ns) == ("data-stall", pytest.approx(5e6))
    assert find_in_all(found)[0].facts["cause_ms"] == pytest.approx(5.0)


def test_nobody_is_late_where_ranks_differ_by_noise(compared):
    found = job_of(compared(*(steps(20, shift=n) for n in range(4))))
    assert (found.late_ranks, found.taking_turns, found.begins_late) == ((), (), None)


def test_one_long_pause_makes_nobody_late(compared):
    ranks = [steps(20, shift=n) for n in range(4)]
    ranks[1][3]["gc-pause"] = 4.0
    assert job_of(compared(*ranks)).late_ranks == ()


def test_the_late_rank_is_the_one_that_the_others_wait_for_however_few_the_steps(compared):
    """Rank 2 pauses for 3000 ms in one of three steps: each of the others waits for 1000 ms a step, and it for none."""
    ranks = [steps(20, num=3, shift=n) for n in range(4)]
    ranks[2][1]["gc-pause"] = 3000.0
    compared_ranks = compared(*ranks)
    found = job_of(compared_ranks)
    assert (found.late_ranks, found.num_late, found.taking_turns) == ((2,), 1, ())
    assert (found.late_ns, found.saved_ns) == (pytest.approx(1e9, rel=1e-3), pytest.approx(1e9, rel=1e-3))
    assert found.cause == "gc-pause"
    assert find_in_all(compared_ranks)[0].title == (
        "Rank 2 comes late in 1 of 3 steps: the others wait 1.00 s a step; 1.00 s more gc-pause there"
    )


def test_ranks_take_turns_only_if_more_than_one_is_waited_for(compared):
    """Rank 2 pauses for 12 ms in two of six steps and no other one does: it is late, and nobody takes turns with it."""
    ranks = [steps(20, shift=n) for n in range(4)]
    for step in (1, 4):
        ranks[2][step]["gc-pause"] = 12.0
    found = job_of(compared(*ranks))
    assert (found.late_ranks, found.num_late, found.taking_turns) == ((2,), 2, ())


def test_of_two_ranks_one_is_waited_for_most_by_chance(compared):
    """Rank 1 pauses for 12 ms in three of five steps, rank 0 for 6 ms in two: 36 of 48 ms of waiting show nothing."""
    ranks = [steps(20, num=5, shift=n) for n in range(2)]
    for step in range(5):
        late = int(step % 2 == 0)
        ranks[late][step]["gc-pause"] = 12.0 if late else 6.0
    found = job_of(compared(*ranks))
    assert (found.late_ranks, set(found.taking_turns)) == ((), {0, 1})


def test_a_rank_without_equals_is_late_if_the_others_wait_for_it(make_profile):
    """Rank 2 exchanges in a group of its own as well, so nothing shows what its own time should be."""
    ends = np.cumsum([30.5] * 6).tolist()
    ranks = [make_profile(n, steps(30 if n == 2 else 20, shift=n), ends) for n in range(4)]
    lone = Group("alone", size=3)
    ranks[2] = replace(ranks[2], groups=(*ranks[2].groups, lone), kinds=(*ranks[2].kinds, CollectiveKind(1, "gather")))
    found = job_of(compare_ranks(JobProfile.of(ranks), TRAITS))
    assert (found.late_ranks, found.num_late) == ((2,), 6)
    assert found.late_ns == pytest.approx(10e6, rel=0.01)


def test_little_waiting_for_one_rank_in_nearly_all_steps_is_no_chance(compared):
    """Of nine steps of 300 ms, rank 2 takes 9 ms longer in eight and 9 ms less in one: its own times vary too much."""
    ranks = [[{"compute-forward": 300 + 4 * ((-1) ** (n + step))} for step in range(9)] for n in range(4)]
    ranks[2] = [{"compute-forward": 291.0 if step == 4 else 313.0} for step in range(9)]
    found = job_of(compared(*ranks))
    assert (found.late_ranks, found.num_late) == ((2,), 8)


def test_pauses_that_wander_are_turns_with_their_cause(compared):
    ranks = [steps(20, shift=n) for n in range(3)]
    for step in range(6):
        ranks[step % 3][step]["gc-pause"] = 12.0
    found = job_of(compared(*ranks))
    assert found.late_ranks == ()
    assert set(found.taking_turns) == {0, 1, 2}
    assert (found.cause, found.cause_ns) == ("gc-pause", pytest.approx(12e6))


def test_more_than_a_third_of_the_ranks_are_not_late_but_different(compared):
    found = job_of(compared(*(steps(20, loading=3.0 * (n % 2), shift=n) for n in range(4))))
    assert found.late_ranks == ()


def test_a_rank_that_begins_the_window_late_is_named_and_not_called_late(make_profile):
    ends = [40.0 + 20 * n for n in range(6)]
    own = [{"compute-forward": 19.5 + NOISE[n]} for n in range(6)]
    ranks = [make_profile(n, own, ends, begins=15.0 if n == 2 else 0.0) for n in range(4)]
    found = job_of(compare_ranks(JobProfile.of(ranks), TRAITS))
    assert (found.late_ranks, found.begins_late) == ((), 2)
    assert found.begins_late_ns == pytest.approx(15e6)
    assert found.first_share > 0.9


@pytest.mark.parametrize("num", [2, 3, 4, 7])
def test_the_median_of_the_others_leaves_each_one_out(num):
    values = np.arange(num, dtype=float) ** 2
    others = [np.median(np.delete(values, i)) for i in range(num)]
    assert median_of_others(values).tolist() == others


@pytest.mark.parametrize("num", [3, 6])
def test_one_kernel_that_is_slower_is_named_and_not_the_device(make_profile, num):
    """The kernel takes most of the time or a third of it, and 1.6 times as long on rank 2."""
    count = np.full(num, 60)
    mean_ms = np.array([12.0, *[1.0] * (num - 1)]) if num == 3 else np.full(num, 2.5)
    ranks = []
    for n in range(4):
        factors = np.array([1.6 if n == 2 else 1.0, *[1.0] * (num - 1)])
        kernels = Speeds(np.arange(num), count, (mean_ms * factors * 6e6).astype(np.int64))
        own = float((mean_ms * factors).sum())
        names = tuple(f"gemm_{i}" for i in range(num))
        ends = np.cumsum([float(mean_ms.sum() + 8)] * 6).tolist()
        ranks.append(make_profile(n, steps(own, shift=n), ends, kernels=kernels, kernel_names=names))
    found = compare_ranks(JobProfile.of(ranks), TRAITS)
    assert (found.reason.cause, found.reason.kernel) == ("slower-kernel", "gemm_0")
    assert found.reason.ratio == pytest.approx(1.6)
    assert found.reason.more_ns == pytest.approx(0.6 * mean_ms[0] * 1e6, rel=0.01)
    assert "the kernel gemm_0 takes 1.60 × as long there" in find_in_all(found)[0].title


@pytest.mark.parametrize(("of_host", "cause"), [(1.25, "slower-rank"), (1.08, "slower-device")])
def test_where_kernels_and_the_host_are_slower_all_of_the_rank_is(make_profile, of_host, cause):
    names, count = np.arange(4), np.full(4, 60)
    ranks = []
    for n in range(4):
        factor, host = (1.2, of_host) if n == 2 else (1.0, 1.0)
        made = [Speeds(names, count, (np.array([4, 3, 2, 1]) * 12e6 * f).astype(np.int64)) for f in (factor, host)]
        ends = np.cumsum([24.5] * 6).tolist()
        ranks.append(make_profile(n, steps(20 * factor, shift=n), ends, kernels=made[0], operators=made[1]))
    found = compare_ranks(JobProfile.of(ranks), TRAITS)
    assert (found.reason.cause, found.reason.ratio) == (cause, pytest.approx(1.2))
    assert find_in_all(found)[0].facts["cause_ms"] == pytest.approx(4.0, rel=0.01)


def slowed(make_profile, num, *, by, of_steps, more_steps=0, vary=0.0):
    """Return ranks of which the last one's operators take ``by`` times as long; its steps take ``of_steps`` longer.

    The steps of the others vary by ``vary`` ms.
    """
    names = np.array([1, 2, 3])
    ends = np.cumsum([30.5] * (len(of_steps) + more_steps)).tolist()
    ranks = []
    for n in range(num):
        is_late = n == num - 1
        first = 0 if is_late else more_steps
        more = of_steps if is_late else [vary * (-1) ** (i + n) for i in range(len(of_steps))]
        spent = [{"launch-bound": 20.0}] * (more_steps - first) + [
            {"launch-bound": 20.0 + NOISE[(i + n) % 6] + ms} for i, ms in enumerate(more)
        ]
        count = np.full(3, 10 * len(spent))
        speeds = Speeds(names, count, (count * np.array([4, 3, 2]) * (by if is_late else 1.0) * 1e5).astype(np.int64))
        begins = ends[first - 1] if first else 0.0
        known = {"operators": speeds, "begins": begins, "step_number": np.arange(first, len(ends))}
        ranks.append(make_profile(n, spent, ends[first:], **known))
    return ranks


@pytest.mark.parametrize(("by", "late"), [(1.4, (1,)), (1.1, ())])
def test_of_two_ranks_whose_steps_vary_operators_show_which_is_slower(make_profile, by, late):
    ranks = slowed(make_profile, 2, by=by, of_steps=[1.3, 2.8, 1.5, 0.8], vary=0.5)
    found = compare_ranks(JobProfile.of(ranks), TRAITS)
    assert found.lateness.late == late
    assert found.reason.cause == ("slower-host" if late else "")


def test_a_step_that_only_the_slower_rank_recorded_is_no_more_work(make_profile):
    ranks = slowed(make_profile, 4, by=1.4, of_steps=[3.0, 3.1, 3.0, 2.9, 3.1, 3.0], more_steps=1)
    reason = compare_ranks(JobProfile.of(ranks), TRAITS).reason
    assert (reason.cause, reason.ratio) == ("slower-host", pytest.approx(1.4))


@pytest.mark.parametrize(("of_steps", "num"), [([5.4, 1.4, 2.9, 0.8, 6.1, 2.7], 6), ([5.4, 0.02, 2.9, 0, 9, 2], 4)])
def test_a_rank_that_each_step_shows_to_be_late_is_late_by_whatever_it_varies(make_profile, of_steps, num):
    """All that is waited is for rank 4: 3.2 ms of a step of 30.5 ms, in as many steps as it takes longer in."""
    ranks = slowed(make_profile, 5, by=1.0, of_steps=of_steps)
    lateness = compare_ranks(JobProfile.of(ranks), TRAITS).lateness
    assert (lateness.late, lateness.num_late) == ((4,), num)


@pytest.mark.parametrize(
    ("of_steps", "late"),
    [
        ([1.3, 1.3, 1.1, 0.9, 2.8, 1.2], (1,)),
        ([5.4, 0.02, 2.9, 3.1, 4.0, 2.7], (1,)),  # in one step nothing interrupts it
        ([5.4, 0.02, 2.9, 0.0, 0.03, 2.7], ()),
    ],
)
def test_of_two_ranks_a_step_shows_who_is_late_by_what_the_other_one_varies(make_profile, of_steps, late):
    ranks = slowed(make_profile, 2, by=1.0, of_steps=of_steps)
    assert compare_ranks(JobProfile.of(ranks), TRAITS).lateness.late == late


@pytest.mark.parametrize(("by", "late"), [(1.4, (3,)), (1.0, ())])
def test_of_few_steps_calls_show_a_slow_host_by_whatever_its_steps_vary(make_profile, by, late):
    ranks = slowed(make_profile, 4, by=by, of_steps=[0.9, 1.8, 1.9], vary=0.5)
    assert compare_ranks(JobProfile.of(ranks), TRAITS).lateness.late == late


def test_one_name_that_is_slower_by_less_leaves_the_others_slower(make_profile):
    """A name that one long pause fell into on another rank is slower by 1.12 only, the others by 1.5."""
    ranks = slowed(make_profile, 2, by=1.0, of_steps=[1.3, 2.8, 1.5, 0.8], vary=0.5)
    total = ranks[1].operators.total_ns * np.array([1.5, 1.12, 1.5])
    ranks[1] = replace(ranks[1], operators=replace(ranks[1].operators, total_ns=total.astype(np.int64)))
    found = compare_ranks(JobProfile.of(ranks), TRAITS)
    assert (found.lateness.late, found.reason.cause, found.reason.ratio) == ((1,), "slower-host", pytest.approx(1.5))


def test_transfers_that_end_waits_hide_nothing_of_what_a_host_takes(make_profile):
    """The late rank's host covers all transfers; on the others, a millisecond of them ends each wait."""
    ends = np.cumsum([9.0] * 6).tolist()
    host = np.full(6, 8_000_000)
    ranks = []
    for n in range(4):
        own = 9.0 if n == 2 else 5.0
        p = make_profile(n, [{"compute-forward": 5 + NOISE[i], "launch-bound": own - 5} for i in range(6)], ends)
        length = np.full(6, 1_000_000 if n == 2 else 4_000_000)
        beside = length if n == 2 else np.zeros(6, np.int64)
        c = replace(p.collectives, start=p.bounds - length, length=length, alone=length, unlaunched=beside)
        ranks.append(replace(p, collectives=c, host_time=host if n != 2 else p.host_time))
    found = compare_ranks(JobProfile.of(ranks), TRAITS)
    assert found.lateness.late == (2,)
    assert found.lateness.late_ns == pytest.approx(1e6, rel=0.05)


@pytest.mark.parametrize("loading", [2.0, 4.0])
def test_what_hosts_do_ahead_is_all_of_a_slower_host(make_profile, loading):
    """The others' loaders wait ahead of their devices, so that only the late rank's is seen: its pace makes it so."""
    ranks = slowed(make_profile, 4, by=1.4, of_steps=[0.0] * 6)
    ends = np.cumsum([13.5] * 6).tolist()
    slow = [{"compute-forward": 5 + NOISE[n], "launch-bound": 7.0 - loading, "data-stall": loading} for n in range(6)]
    host = np.full(6, 9_500_000)
    made = [make_profile(n, steps(5, shift=n), ends, host_time=host, operators=ranks[n].operators) for n in range(3)]
    made.append(make_profile(3, slow, ends, operators=ranks[3].operators))
    found = compare_ranks(JobProfile.of(made), TRAITS)
    assert (found.lateness.late, found.reason.cause) == ((3,), "slower-host")
    assert found.reason.more_ns == pytest.approx(12e6 - (9.5e6 - 1.5e6), rel=0.02)
    assert found.reason.differences["data-stall"] > 1e6


def test_what_the_other_hosts_take_ahead_of_their_devices_is_no_lateness(make_profile):
    """The others' devices work for 5 ms, move data for 0.5 and wait for 4; their hosts take 8 ms for a step anyway."""
    ends = np.cumsum([9.5] * 6).tolist()
    host = np.full(6, 8_000_000)
    ranks = [make_profile(n, steps(5, shift=n), ends, host_time=host) for n in range(4)]
    ranks[2] = make_profile(2, [{"compute-forward": 5 + NOISE[n], "launch-bound": 4.0} for n in range(6)], ends)
    found = compare_ranks(JobProfile.of(ranks), TRAITS)
    assert found.lateness.late_ns == pytest.approx(1.5e6, rel=0.05)
    assert found.without_late.saved_ns == pytest.approx(1.5e6, rel=0.05)
    assert (found.reason.cause, found.reason.more_ns) == ("launch-bound", pytest.approx(1.5e6, rel=0.05))


def test_a_rank_is_late_for_which_a_small_group_waits(make_profile):
    """Four pairs that exchange among themselves: of seven other ranks one waits for rank 2."""
    ranks = []
    for n in range(8):
        pair = (n // 2 * 2, n // 2 * 2 + 1)
        ends = np.cumsum([25.5 if pair == (2, 3) else 20.5] * 6).tolist()
        own = steps(20, loading=5.0 if n == 2 else 0.0, shift=n)
        ranks.append(make_profile(n, own, ends, group=Group(f"ep{n // 2}", "mesh_ep", 2, pair), world_size=8))
    found = job_of(compare_ranks(JobProfile.of(ranks), TRAITS))
    assert (found.late_ranks, found.cause) == ((2,), "data-stall")
    assert found.saved_ns == pytest.approx(5e6, rel=0.02)


def test_a_pause_behind_the_last_collective_counts_in_as_many_steps_as_there_are(make_profile):
    """The first step's interval begins behind no pause, and one pause follows the last collective."""
    ends = [20.5, *(20.5 + np.cumsum([25.5] * 4))]
    ranks = []
    for n in range(4):
        own = [
            {"compute-forward": 20.0 + NOISE[(i + n) % 6], "gc-pause": 5.0 if n == 2 and i else 0.0} for i in range(5)
        ]
        p = make_profile(n, own, ends)
        behind = p.spent.copy()
        behind[p.causes.index("gc-pause"), -1] = 5e6 if n == 2 else 0
        ranks.append(replace(p, spent=behind))
    found = compare_ranks(JobProfile.of(ranks), TRAITS)
    assert (found.reason.cause, found.reason.more_ns) == ("gc-pause", pytest.approx(5e6))
