"""The time of all of ``diagnose prove``."""

import pytest

from diagnose.trials.prove import Budget


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that only goes on when it is told to."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    found = Clock()
    monkeypatch.setattr("diagnose.trials.prove.time", found)
    return found


def test_the_last_recording_gets_as_long_as_the_first_took(clock):
    budget, notes = Budget(60), []
    with budget.recording():
        clock.now += 15
    assert (budget.left, budget.for_trials) == (45, 30)
    clock.now += 30
    assert (budget.left, budget.for_trials) == (15, 15)  # less than there is to keep back
    assert budget.records(["allow-tf32"], notes)
    assert not notes
    clock.now += 1
    assert not budget.records(["allow-tf32"], notes)
    assert len(notes) == 1
    assert notes[0].startswith("The budget was used up before the steps")
    clock.now += 100
    assert (budget.left, budget.for_trials) == (0, 0)


def test_a_capture_that_was_there_needs_no_time(clock):
    budget = Budget(60)
    clock.now += 59
    assert budget.for_trials == 1
    assert budget.records(["allow-tf32"], [])
    clock.now += 1
    assert not budget.records(["allow-tf32"], [])


def test_without_a_gain_nothing_is_recorded_and_nothing_is_said_of_it(clock):
    budget, notes = Budget(60), []
    assert not budget.records((), notes)
    clock.now += 61
    assert not budget.records((), notes)
    assert not notes


def test_the_last_recording_leaves_time_for_its_analysis(clock):
    budget = Budget(60)
    with budget.analysis():
        clock.now += 8
    assert budget.for_recording == 44
    clock.now += 45
    assert (budget.left, budget.for_recording) == (7, 0)
    assert not budget.records(["allow-tf32"], [])
