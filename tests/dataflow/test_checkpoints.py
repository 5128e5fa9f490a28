"""What to compute again for a budget: what lowers the peak most for its time comes first."""

import numpy as np

from diagnose.dataflow.checkpoints import checkpoints
from diagnose.dataflow.kept import KeptMemory


def kept(operators, *changes):
    """Return calls that free memory between operators of the step."""
    return KeptMemory(None, None, "", tuple(operators), changes)


HELD = np.array([10, 50, 100, 50, 10])
LARGE, CHEAP, WHOLE = kept([1], (2, 3, -40)), kept([2], (2, 3, -20)), kept([1, 2], (2, 3, -60))


def chosen(most, *calls, times):
    """Return number, freed bytes and peak of each checkpoint."""
    return [(one.number, one.freed_bytes, one.peak_bytes) for one in checkpoints(HELD, calls, times, most)]


def test_what_frees_most_for_its_time_comes_first_until_the_budget_holds():
    assert chosen(85, LARGE, CHEAP, times=(100, 10)) == [(1, 20, 80)]
    assert chosen(75, LARGE, CHEAP, times=(100, 10)) == [(0, 40, 60)]  # the cheap one is no longer needed
    assert chosen(50, LARGE, CHEAP, times=(100, 10)) == [(1, 20, 80), (0, 30, 50)]


def test_nothing_is_chosen_where_the_step_fits():
    assert chosen(100, LARGE, times=(1,)) == []


def test_what_holds_its_memory_again_at_the_peak_lowers_it_by_the_difference():
    assert chosen(90, kept([1], (2, 3, -40), (3, 4, 45)), times=(1,)) == [(0, 5, 95)]


def test_a_call_that_includes_chosen_ones_replaces_them():
    assert chosen(45, LARGE, CHEAP, WHOLE, times=(10, 10, 1000)) == [(0, 40, 60), (1, 10, 50)]
    assert chosen(55, CHEAP, WHOLE, times=(10, 1000)) == [(1, 50, 50)]


def test_calls_whose_time_is_not_known_are_left_out():
    assert chosen(50, LARGE, times=(0,)) == []


def test_the_list_is_as_long_as_it_can_be_where_the_budget_cannot_be_reached():
    assert chosen(20, LARGE, CHEAP, times=(100, 10)) == [(1, 20, 80), (0, 30, 50)]
