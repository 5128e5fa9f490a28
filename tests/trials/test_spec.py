"""What a trial's process has left is checked: it belongs to the script."""

import json
import math

import pytest

from diagnose.trials.measuring import TrialResult


def test_what_was_written_is_read():
    run = TrialResult((1.5, 2.0), (math.inf,), (1.0,), 2, None, False, ("a",), (), "", 3.5)
    assert TrialResult.from_json(run.to_json()) == run
    assert math.isnan(TrialResult.from_json(TrialResult(losses=(math.nan,)).to_json()).losses[0])


@pytest.mark.parametrize(
    "values",
    [
        [], {"more": 1}, {"step_ns": 5}, {"step_ns": ["1"]}, {"step_ns": [-1.0]}, {"step_ns": [math.nan]},
        {"step_ns": [True]}, {"step_ns": [10**400]}, {"losses": [None]}, {"failure": 7}, {"converged": "yes"},
        {"skipped_steps": 1.5}, {"peak_bytes": 1 << 70}, {"applied": ["a", 1]},
    ],
)  # fmt: skip
def test_anything_else_is_an_error(values):
    with pytest.raises(ValueError, match=r"^it"):
        TrialResult.from_json(json.dumps(values))


def test_what_it_quotes_is_short_and_does_not_steer_a_terminal():
    run = TrialResult.from_json(json.dumps({"failure": "\x1b[31m" + "x" * 10_000}))
    assert run.failure.startswith(r"\x1b[31mxx")
    assert len(run.failure) == 1_000
