import math

import numpy as np
import pytest

from diagnose.model.statistics import leaning, noise_of, run_shift, runs_needed, speed_up

RNG = np.random.default_rng(7)


def steps(mean, spread, num=40):
    return RNG.normal(mean, spread, num).tolist()


def test_half_the_time_is_twice_as_fast():
    faster = speed_up([[10.0] * 20], [[5.0] * 20], noise=0.0)
    assert faster == (2.0, 2.0, 2.0)


def test_the_interval_holds_the_truth_and_shrinks_with_the_spread():
    wide = speed_up([steps(10, 2), steps(10, 2)], [steps(8, 2), steps(8, 2)], noise=0.0)
    narrow = speed_up([steps(10, 0.1), steps(10, 0.1)], [steps(8, 0.1), steps(8, 0.1)], noise=0.0)
    assert wide.low < 1.25 < wide.high
    assert narrow.low < 1.25 < narrow.high
    assert narrow.high - narrow.low < wide.high - wide.low


def test_the_machines_noise_moves_both_ends_outwards():
    faster = speed_up([[10.0] * 20] * 2, [[9.0] * 20] * 2, noise=0.2)
    assert faster.ratio == pytest.approx(10 / 9)
    assert faster.low == pytest.approx(10 / 9 / 1.2)
    assert faster.low < 1.0  # a gain smaller than the noise is not claimed
    assert faster.high == pytest.approx(10 / 9 * 1.2)


def test_the_noise_counts_less_the_more_runs_there_are():
    low, lower = (speed_up([[10.0] * 20] * runs, [[9.0] * 20] * runs, noise=0.2).low for runs in (8, 2))
    assert low == pytest.approx(10 / 9 / 1.1)
    assert lower == pytest.approx(10 / 9 / 1.2)


def test_slow_spells_of_the_machine_that_fall_on_both_variants_leave_the_ratio():
    fast, slow = [10.0] * 20, [15.0] * 20
    changed = [[step / 2 for step in run] for run in (slow, fast, slow)]
    assert speed_up([fast, fast, slow], changed, noise=0.0).ratio == pytest.approx(2.0)


def test_runs_that_differ_widen_the_interval_more_than_their_steps_do():
    even = speed_up([[10.0] * 20, [10.0] * 20], [[8.0] * 20, [8.0] * 20], noise=0.0)
    uneven = speed_up([[9.0] * 20, [11.0] * 20], [[7.0] * 20, [9.0] * 20], noise=0.0)
    assert even.low == even.high
    assert uneven.low < 1.1
    assert uneven.high > 1.4


def test_no_gain_is_seen_between_equal_runs():
    claims = 0
    for _ in range(20):
        runs = [steps(10, 1) for _ in range(4)]
        faster = speed_up(runs[:2], runs[2:], noise_of(runs))
        claims += faster.low > 1.0 or faster.high < 1.0
    assert claims == 0


def test_noise_is_the_largest_distance_from_the_middle():
    assert noise_of([[10.0] * 3, [11.0] * 3, [10.0] * 3]) == pytest.approx(0.1)
    assert noise_of([[10.0] * 3]) == 0.0
    assert noise_of([]) == 0.0


def test_a_shift_of_runs_has_the_interval_of_student_and_the_chance_of_their_order():
    shift = run_shift([1.0, math.e], [math.e**2, math.e**3])  # logarithms 0, 1 and 2, 3: spread 0.71, error 0.71
    assert shift.ratio == pytest.approx(math.e**2)  # of the medians
    assert math.log(shift.high / shift.ratio) == pytest.approx(4.303 * 0.5**0.5, rel=1e-3)
    assert math.log(shift.ratio / shift.low) == pytest.approx(4.303 * 0.5**0.5, rel=1e-3)
    assert shift.spread == pytest.approx(0.5**0.5)
    assert shift.gap == pytest.approx(math.e)
    assert (shift.order_chance, shift.num_orders) == (pytest.approx(1 / 6), 6)


@pytest.mark.parametrize(
    ("slower", "faster", "chance"),
    [
        ((4, 5, 6), (1, 2, 3), 1 / 20),
        ((3, 5, 6), (1, 2, 4), 2 / 20),  # one pair the other way round
        ((3, 4, 5), (1, 2, 3), 2 / 20),  # a tie counts as one
        ((5,), (1, 2, 3, 4), 1 / 5),
        ((6, 7, 8, 9, 10), (1, 2, 3, 4, 5), 1 / 252),
    ],
)
def test_the_chance_of_an_order(slower, faster, chance):
    assert run_shift(faster, slower).order_chance == pytest.approx(chance)
    assert run_shift(slower, faster).order_chance == pytest.approx(chance)


def test_more_runs_are_needed_for_smaller_differences():
    assert [runs_needed(0.05, ratio) for ratio in (1.5, 1.2, 1.1, 1.0)] == [1, 1, 3, math.inf]


def run_of(rng, spread, *, cost=0.0, every=10, num=40):
    """Return steps of 100 ms, every tenth of them ``cost`` longer, in a run that is slower or faster as a whole."""
    steps = 100.0 * np.exp(rng.normal(0, spread)) * (1 + rng.normal(0, 0.02, num))
    steps[every - 1 :: every] += cost
    return steps.tolist()


def proven_twice(rng, spread, cost, cost_after):
    """Tell whether a change is faster or slower for certain in two measurements, as a trial has to be."""
    baselines = [run_of(rng, spread, cost=cost) for _ in range(4)]
    changed = [[run_of(rng, spread, cost=cost_after) for _ in range(2)] for _ in range(2)]
    found = []
    for i, variants in enumerate(changed):
        noise = max(noise_of(baselines[: 3 + i]), noise_of(variants))
        found.append(speed_up(baselines[1 + i : 3 + i], variants, noise))
    return all(one.low > 1 for one in found) or all(one.high < 1 for one in found)


def test_a_saving_of_what_every_tenth_step_costs_is_found():
    rng = np.random.default_rng(5)
    assert sum(proven_twice(rng, 0.01, 190.0, 0.0) for _ in range(10)) == 10


@pytest.mark.parametrize(("spread", "cost"), [(0.01, 0.0), (0.08, 190.0)])
def test_a_control_is_claimed_no_more_often_than_before(spread, cost):
    rng = np.random.default_rng(6)
    assert sum(proven_twice(rng, spread, cost, cost) for _ in range(40)) <= 1


@pytest.mark.parametrize(
    ("ratio", "interval", "side"),
    [
        (0.5, (0.2, 1.25), "slower"),
        (2.0, (0.8, 5.0), "faster"),
        (0.8, (0.4, 1.6), ""),  # a third of the half-width from 1
        (1.0, (1.0, 1.0), ""),
        (0.98, (0.97, 1.01), ""),  # within 3 %
        (0.98, (0.96, 1.0), "slower"),
        (1.0, (0.0, 0.0), ""),
    ],
)
def test_a_speed_up_leans_to_a_side_where_its_middle_is_half_of_the_half_width_away(ratio, interval, side):
    assert leaning(ratio, interval) == side
