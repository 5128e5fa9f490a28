"""Slower, faster, the same or undecided: from the spread between runs, never from the steps within one."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.compare.compare import evaluate

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
        ((10,), (12,), "the baseline is 1 run", "Record at least 2 runs of the baseline, better 3 of each side; "),
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


def gates(noise, num_gates, *, regression=1.0, before=3, after=3):
    """Return what each of so many gates finds."""
    rng = np.random.default_rng(20)
    found = []
    for _ in range(num_gates):
        steps = 10 * NOISE[noise](rng, before + after)
        steps[before:] *= regression
        found.append(evaluate(steps[:before].tolist(), steps[before:].tolist(), TOLERANCE))
    return found


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("num_runs", [(2, 2), (3, 3), (5, 5), (3, 1)])
def test_with_nothing_changed_a_gate_hardly_ever_fails(noise, num_runs):
    failed = [found.outcome == "slower" for found in gates(noise, 1000, before=num_runs[0], after=num_runs[1])]
    in_a_row = np.reshape(failed, (50, 20)).sum(axis=1)
    assert (in_a_row > 1).sum() <= 3  # of 50 times 20 gates: three runs on a bimodal machine are the worst
    assert sum(failed) <= 0.015 * 1000


@pytest.mark.parametrize(
    ("noise", "num_found"),
    [
        ("log-normal 5 %", 60),
        ("log-normal 8 %", 35),
        ("log-normal 12 %", 15),
        ("drift", 75),
        ("rarely slow", 30),
        ("bimodal", 5),
    ],
)
def test_a_step_that_is_a_fifth_longer_with_three_runs_a_side(noise, num_found):
    found = gates(noise, 100, regression=1.2)
    assert sum(one.outcome == "slower" for one in found) >= num_found
    assert sum(one.excludes_slower(TOLERANCE) for one in found) <= 6
