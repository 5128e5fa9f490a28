"""What a trial's process says of a script that ended before enough was timed."""

import pytest

from diagnose.capture.process.script import Outcome
from diagnose.changes.common.change import CannotApply
from diagnose.trials.child import why_nothing
from diagnose.trials.measuring import StepTimer, TrialRequest


@pytest.fixture
def timer():
    found = StepTimer(10, 30, alone=True, timing_begins=lambda: None)
    for _ in range(7):
        found.boundary()
    return found


UNCHANGED, CHANGED = TrialRequest("result.json"), TrialRequest("result.json", ids=("autocast",))
RAISED = Outcome("raised", 1, ValueError("bad data.\nmore"))


def test_a_change_under_which_the_script_raises_has_failed_however_much_was_timed(timer):
    assert why_nothing(CHANGED, RAISED, timer, 20) == "The script raised ValueError: bad data."
    assert why_nothing(UNCHANGED, RAISED, timer, 20) == ""  # its data ended, or so
    assert why_nothing(UNCHANGED, RAISED, timer, 4) == "The script raised ValueError: bad data."


def test_a_refusal_is_said_as_it_is(timer):
    refused = Outcome("raised", 1, CannotApply("fp16 needs the model on a GPU."))
    assert why_nothing(CHANGED, refused, timer, 20) == "fp16 needs the model on a GPU."


def test_a_script_that_ends_early_is_told_how_far_it_came(timer):
    assert "ended after 7 steps" in why_nothing(UNCHANGED, Outcome("finished", 0), timer, 0)
    assert why_nothing(UNCHANGED, Outcome("stopped", 0), timer, 30) == ""
