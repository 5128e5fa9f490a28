"""The mean step of a run, where some steps recur that take longer and some are the machine's."""

import numpy as np
import pytest

from diagnose.model.statistics import mean_step, period_of, whole_periods

NOISE = np.random.default_rng(3).random(100)


def recurring(num, every, cost, first=0):
    return [100.0 + i % 2 + (cost if i % every == first else 0) for i in range(num)]


@pytest.mark.parametrize(("every", "num"), [(10, 25), (7, 40), (3, 20), (10, 20), (50, 120)])
def test_a_cost_that_recurs_counts_in_whole_periods(every, num):
    run = recurring(num, every, 90.0, first=every // 2)
    assert period_of(run) in (every, 2 * every)  # the steps in between differ by turns
    assert mean_step(run) == pytest.approx(100.5 + 90.0 / every, abs=0.5)


def test_even_steps_and_few_ones_have_no_period():
    assert [period_of(run) for run in ([5.0] * 20, [5.0, 5.1, 4.9], [], [0.0] * 9)] == [1, 1, 1, 1]
    assert mean_step([5.0]) == 5.0


def test_a_single_stall_is_the_machines():
    assert mean_step([100.0] * 20 + [5000.0]) == 100.0
    assert mean_step([100.0] * 30 + [900.0] + [100.0] * 12 + [700.0] + [100.0]) == 100.0


def test_the_period_of_most_runs_is_that_of_all():
    runs = [recurring(24, 6, 50.0), recurring(24, 6, 50.0, first=3), [100.0] * 24]
    assert [rows.shape for rows in whole_periods(runs)] == [(4, 6)] * 3


def test_the_longest_step_that_a_file_can_hold_has_a_mean():
    assert mean_step([1e300, 2e300] * 4) == pytest.approx(1.5e300)


def test_long_steps_at_the_same_place_of_all_runs_are_the_programs():
    collected = [100.0 if i in {49, 70} else 10.0 + noise for i, noise in enumerate(NOISE)]
    runs = [[step + 0.1 * run for step in collected] for run in range(3)]
    means = [float(rows.mean()) for rows in whole_periods(runs)]
    assert means == pytest.approx([sum(run) / 100 for run in runs], rel=1e-3)
    assert whole_periods(runs)[0].max() < 15  # spread over all steps: drawing from them does not draw a long one twice


def test_long_steps_of_one_run_alone_and_first_ones_are_the_machines():
    even = [10.0 + noise for noise in NOISE]
    stalled = [100.0 if i in {49, 70} else step for i, step in enumerate(even)]
    cold = [500.0 if i == 0 else step for i, step in enumerate(even)]
    for runs in ([stalled, even, even], [cold, cold, cold]):
        assert max(rows.max() for rows in whole_periods(runs)) < 12
        assert max(rows.mean() for rows in whole_periods(runs)) < 11


def test_long_steps_that_are_a_step_apart_in_equal_runs_are_the_programs():
    """Collections of garbage, of 160 ms among 4, a step sooner in one of the runs; a stall is at a place of its own."""
    at = np.array([8, 72, 132, 198, 262])
    runs = [np.full(300, 4.0) for _ in range(3)]
    for run, sooner in zip(runs, (0, 0, 1), strict=True):
        run[at - sooner] = 160.0
    runs[1][100] = 500.0
    assert [float(run.mean()) for run in whole_periods(runs)] == pytest.approx([4 + 5 * 156 / 300] * 3, rel=0.01)


def test_long_steps_further_apart_are_the_machines():
    runs = [np.full(300, 4.0) for _ in range(2)]
    runs[0][[50, 130, 250]] = runs[1][[55, 141, 247]] = 160.0
    assert [float(run.mean()) for run in whole_periods(runs)] == pytest.approx([4.0, 4.0])
