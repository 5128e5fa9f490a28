"""The time of a whole proof."""

import pytest

from diagnose.proof import budget as module
from diagnose.proof.budget import Budget


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that only goes on when it is told to."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


def test_the_last_recording_gets_as_long_as_the_first_took(clock):
    budget = Budget(60)
    with budget.recording():
        clock.now += 15
    assert (budget.left, budget.for_trials) == (45, 30)
    clock.now += 30
    assert (budget.left, budget.for_trials, budget.has_time_to_record) == (15, 0, True)
    clock.now += 1
    assert not budget.has_time_to_record
    clock.now += 100
    assert (budget.left, budget.for_trials) == (0, 0)


def test_a_capture_that_was_there_needs_no_time(clock):
    budget = Budget(60)
    clock.now += 59
    assert (budget.for_trials, budget.has_time_to_record) == (1, True)
    clock.now += 1
    assert not budget.has_time_to_record
