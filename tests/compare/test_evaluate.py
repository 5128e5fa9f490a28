"""Slower, faster, the same or undecided: from the spread between runs, never from the steps within one."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.compare.evaluate import evaluate

TOLERANCE = 0.05


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ((10, 10.1, 9.9), (12, 12.1, 11.9), "slower"),
        ((12, 12.1, 11.9), (10, 10.1, 9.9), "faster"),
        ((10, 10.1, 9.9), (10.2, 10.1, 10.3), "same"),
        ((10, 10.1, 9.9), (10.4, 10.5, 10.6), "same"),  # slower for certain, and within the tolerance
        ((10, 14, 10), (14, 14, 14), "undecided"),  # slow spells are in both
        ((10, 13, 8), (9, 13, 10), "undecided"),  # so uneven that a slower step would not show
        ((10,), (20, 20, 20), "undecided"),
        ((10, 10), (14, 14), "undecided"),  # one slow spell may have met both runs
        ((10, 10.1), (20, 20.1), "slower"),
        ((10, 10.1, 9.9), (14,), "undecided"),
        ((10, 10.1, 9.9), (16,), "slower"),  # a stored spread, and one run beyond any spell
        ((10, 10.1, 9.9), (10.2,), "same"),
    ],
)
def test_outcomes(before, after, outcome):
    assert evaluate(before, after, TOLERANCE).outcome == outcome


@pytest.mark.parametrize(
    ("before", "after", "reason", "remedy"),
    [
        ((10,), (12,), "the baseline is 1 run", "Record at least 2 runs of the baseline, better 3 of each side."),
        ((10, 10.1), (13, 13.1), "met the same spell", "Record 3 runs of each side."),
        ((10, 11, 9), (11, 12, 10.5), "which may be all of it", "More than 20 runs a side would be needed"),
        ((10, 13, 8), (9, 13, 10), "slower is not excluded", "Record 10 runs of each side."),
    ],
)
def test_what_is_undecided_has_a_reason_and_a_remedy(before, after, reason, remedy):
    found = evaluate(before, after, TOLERANCE)
    assert found.outcome == "undecided"
    assert reason in found.reason
    assert remedy in found.remedy


def test_a_larger_tolerance_lets_more_through():
    assert evaluate((10, 10.1, 9.9), (12, 12.1, 11.9), 0.3).outcome == "same"


# The noise between equal runs of shared machines: spells that outlast a run, a spread of 5 to 12 %, a drift of 10 %.
NOISE = {
    "bimodal": lambda rng, num: np.where(rng.random(num) < 0.5, 1.4, 1.0) * np.exp(rng.normal(0, 0.02, num)),
    "rarely slow": lambda rng, num: np.where(rng.random(num) < 0.15, 1.4, 1.0) * np.exp(rng.normal(0, 0.02, num)),
    "log-normal 5 %": lambda rng, num: np.exp(rng.normal(0, 0.05, num)),
    "log-normal 8 %": lambda rng, num: np.exp(rng.normal(0, 0.08, num)),
    "log-normal 12 %": lambda rng, num: np.exp(rng.normal(0, 0.12, num)),
    "drift": lambda rng, num: np.exp(rng.uniform(-0.1, 0.1) * np.linspace(0, 1, num) + rng.normal(0, 0.03, num)),
}


def found_slower(noise, num_gates, *, regression=1.0, before=3, after=3):
    """Return for each gate whether it fails."""
    rng = np.random.default_rng(20)
    failed = []
    for _ in range(num_gates):
        steps = 10 * NOISE[noise](rng, before + after)
        steps[before:] *= regression
        failed.append(evaluate(steps[:before].tolist(), steps[before:].tolist(), TOLERANCE).outcome == "slower")
    return failed


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("num_runs", [(2, 2), (3, 3), (5, 5), (3, 1)])
def test_with_nothing_changed_a_gate_hardly_ever_fails(noise, num_runs):
    failed = found_slower(noise, 400, before=num_runs[0], after=num_runs[1])
    assert sum(failed[:20]) <= 1
    assert sum(failed) <= 0.03 * 400


@pytest.mark.parametrize(
    ("noise", "found"),
    [("log-normal 5 %", 60), ("log-normal 8 %", 30), ("log-normal 12 %", 15), ("drift", 85), ("rarely slow", 30)],
)
def test_a_step_that_is_a_fifth_longer_is_found_with_three_runs_a_side(noise, found):
    assert sum(found_slower(noise, 100, regression=1.2)) >= found
