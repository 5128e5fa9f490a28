"""Why a rank is late: ranks given by what they spend in each step."""

import numpy as np
import pytest

from diagnose.analyzers import TRAITS
from diagnose.analyzers.straggler import find_in_all
from diagnose.changes.common.prescribe import prescribe
from diagnose.ranks.comparison import compare_ranks, job_of
from diagnose.ranks.profile import JobProfile, Speeds
from tests.ranks.conftest import NOISE, steps


def test_the_reason_is_what_the_others_have_less_of_and_not_the_largest_cost(compared):
    ranks = [steps(20, loading=1.0, shift=n) for n in range(4)]
    ranks[2] = steps(20, loading=3.0, shift=2)
    found = job_of(compared(*ranks))
    assert (found.late_ranks, found.cause) == ((2,), "data-stall")
    assert found.cause_ns == pytest.approx(2e6)
    assert dict(found.differences)["compute-forward"] == pytest.approx(0, abs=2e4)


def test_a_slower_device_is_named_with_its_factor_and_the_differences(make_profile):
    names, count = np.arange(4), np.full(4, 60)
    ranks = []
    for n in range(4):
        factor = 1.2 if n == 2 else 1.0
        kernels = Speeds(names, count, (np.array([4, 3, 2, 1]) * 12e6 * factor).astype(np.int64))
        ends = np.cumsum([24.5] * 6).tolist()
        ranks.append(make_profile(n, steps(20 * factor, shift=n), ends, kernels=kernels))
    found = compare_ranks(JobProfile.of(ranks), TRAITS)
    assert (found.reason.cause, found.reason.ratio) == ("slower-device", pytest.approx(1.2))
    assert found.reason.differences == {"compute-forward": pytest.approx(4e6, rel=0.01)}
    assert "compute-forward +4.0" in find_in_all(found)[0].evidence[1]


@pytest.mark.parametrize(
    ("work", "cause", "clause"),
    [
        ({"blocks": 1200.0}, "more-work", "4.00 ms more work there, on inputs 1.20 × as large"),
        ({"blocks": 1050.0}, "slower-device", "every kernel takes 1.20 × as long there"),
    ],
    ids=["as much larger as it is slower", "hardly larger"],
)
def test_inputs_are_compared_before_a_slower_device_is_named(make_profile, work, cause, clause):
    """Every kernel of rank 2 takes 1.2 times as long; 1200 blocks a step against 1000 are as much more work."""
    names, count = np.arange(4), np.full(4, 60)
    ranks = []
    for n in range(4):
        factor = 1.2 if n == 2 else 1.0
        kernels = Speeds(names, count, (np.array([4, 3, 2, 1]) * 12e6 * factor).astype(np.int64))
        ends = np.cumsum([24.5] * 6).tolist()
        of_rank = work if n == 2 else {"blocks": 1000.0}
        ranks.append(make_profile(n, steps(20 * factor, shift=n), ends, kernels=kernels, **of_rank))
    found = compare_ranks(JobProfile.of(ranks), TRAITS)
    assert found.reason.cause == cause
    assert find_in_all(found)[0].title.endswith(clause)


def test_more_operators_on_the_host_are_more_work_and_no_slower_host(make_profile):
    """Rank 2 calls half as many operators more a step, each as long as the others' do."""
    ends, names = np.cumsum([30.5] * 6).tolist(), np.arange(3)
    ranks = []
    for n in range(4):
        count = np.full(3, 900 if n == 2 else 600)
        spent = [{"launch-bound": 30.0 if n == 2 else 20.0 + NOISE[(i + n) % 6]} for i in range(6)]
        ranks.append(make_profile(n, spent, ends, operators=Speeds(names, count, count * 10_000)))
    reason = compare_ranks(JobProfile.of(ranks), TRAITS).reason
    assert (reason.cause, reason.more_ns) == ("more-work", pytest.approx(10e6, rel=0.01))


def test_a_rank_without_a_core_is_late_for_that_and_nothing_else(make_profile):
    """Of a step of 30.5 ms the late rank's thread was runnable without a core for 40 %, the others' for 10 %."""
    ends = np.cumsum([30.5] * 6).tolist()
    ranks = []
    for n in range(4):
        spent = [{"python-stall": 30.0 if n == 2 else 20.0 + NOISE[(i + n) % 6]} for i in range(6)]
        ranks.append(make_profile(n, spent, ends, ready_share=0.4 if n == 2 else 0.1))
    found = compare_ranks(JobProfile.of(ranks), TRAITS)
    assert (found.reason.cause, found.reason.more_ns) == (
        "no-core",
        pytest.approx((0.4 - 0.1 * 30 / 20) * 30.5e6, rel=0.01),
    )
    assert found.reason.where == ()
    finding = find_in_all(found)[0]
    assert finding.title.endswith("its thread had no core for 7.63 ms of each step more than theirs for as much work")
    assert [p.title for p in prescribe(finding, 30.5e6)] == [
        "Find out why everything takes longer on rank 2: its clocks, and what else runs there"
    ]


def test_a_rank_that_has_more_to_do_lacks_busy_cores_for_longer(make_profile):
    """Rank 2 works for 30 ms of each step, the others for 10; all of them lack a core for six tenths of that."""
    ends = np.cumsum([30.5] * 6).tolist()
    ranks = []
    for n in range(4):
        spent = [{"python-stall": 30.0 if n == 2 else 10.0 + NOISE[(i + n) % 6]} for i in range(6)]
        ranks.append(make_profile(n, spent, ends, ready_share=0.6 if n == 2 else 0.2))
    assert compare_ranks(JobProfile.of(ranks), TRAITS).reason.cause == "python-stall"


def test_what_no_cause_explains_is_left_open(compared):
    ranks = [steps(20, shift=n) for n in range(4)]
    ranks[3] = [{**step, "unexplained-device": 3.0} for step in ranks[3]]
    found = job_of(compared(*ranks))
    assert (found.late_ranks, found.cause) == ((3,), "")


def test_a_slower_device_is_named_with_what_takes_longer(make_profile):
    ends = np.cumsum([30.5] * 6).tolist()
    names = np.array([1, 2, 3])

    def rank(number, factor):
        speeds = Speeds(names, np.array([60, 60, 60]), np.array([40, 40, 40]) * int(factor * 1e6))
        return make_profile(number, steps(20 * factor, shift=number), ends, kernels=speeds)

    c = compare_ranks(JobProfile.of([rank(n, 1.5 if n == 2 else 1.0) for n in range(4)]), TRAITS)
    assert (c.reason.cause, c.reason.ratio) == ("slower-device", pytest.approx(1.5))
    assert c.reason.differences == {"compute-forward": pytest.approx(10e6, rel=0.01)}
