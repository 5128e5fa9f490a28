"""The mean step of a run, where some steps recur that take longer and some are the machine's."""

import pytest

from diagnose.model.step_means import mean_step, period_of, whole_periods


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
