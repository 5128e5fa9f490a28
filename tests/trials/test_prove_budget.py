"""What trials may take of their budget, by a clock that goes on while a run lasts and at no other time."""

import pytest

from diagnose.trials.candidates import Candidate
from diagnose.trials.in_sequence import Recorded, Schedule
from diagnose.trials.measuring import TrialResult
from diagnose.trials.prove import prove


class Ticking:
    """Runs of ``wall_s`` each, of 10 ms a step and of 5 ms with a change."""

    clock = 0.0
    warm_up = timed = 0
    schedule = Schedule()
    turns = None

    def __init__(self, wall_s=10.0, changed_s=None, changed_ns=5e6):
        self.wall_s, self.changed_s, self.changed_ns = wall_s, changed_s or wall_s, changed_ns
        self.ran = []

    def time(self, ids, *, timeout_s):
        self.ran.append(tuple(ids))
        needed_s = self.changed_s if ids else self.wall_s
        taken_s = min(needed_s, timeout_s)
        Ticking.clock += taken_s
        if taken_s < needed_s:
            return TrialResult(failure="It was killed.", wall_s=taken_s)
        steps = (self.changed_ns if ids else 10e6,) * self.timed
        return TrialResult(steps, (1.0,) * 9, applied=tuple(ids), wall_s=taken_s)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(Ticking, "clock", 0.0)
    monkeypatch.setattr("time.monotonic", lambda: Ticking.clock)


def run(script, budget_s, *names, recorded_s=0.0):
    chosen = [Candidate(name, name.title(), 0.5) for name in names]
    return prove(script, chosen, budget_s, lambda _text: None, Recorded([10e6] * 20, recorded_s))


def test_unchanged_runs_take_a_third_of_the_budget_while_changes_wait():
    script = Ticking(changed_ns=10e6)
    run(script, 85, "load-in-workers", "schedule-gc", "fused-optimizer")
    tried = ["load-in-workers", "schedule-gc", "fused-optimizer"]
    assert script.ran == [(), (), *[(name,) for name in tried for _ in range(2)]]  # 80 s, and 20 of them unchanged


@pytest.mark.parametrize(("budget_s", "ran"), [(14, 1), (25, 2), (32, 3), (61, 6)])
def test_no_run_begins_or_goes_on_beyond_the_budget(budget_s, ran):
    script = Ticking()
    result = run(script, budget_s, "schedule-gc", "sham")
    assert Ticking.clock <= 1.1 * budget_s
    assert len(script.ran) == ran
    assert result.nothing_tried is (ran == 1)
    assert any("before any change could be tried" in note for note in result.notes) is (ran == 1)


def test_one_unchanged_run_makes_nothing_certain():
    result = run(Ticking(), 32, "schedule-gc")
    assert result.best == ()
    assert "how far equal runs differ" in result.trials[0].note


def test_a_change_that_the_budget_cuts_off_has_not_failed():
    result = run(Ticking(changed_s=100.0), 40, "compile-model")
    assert result.trials[0].failure == "The budget ended while it ran; give --budget more."
    assert result.nothing_tried
    assert Ticking.clock == 40


@pytest.mark.parametrize(("budget_s", "unchanged"), [(11, 0), (19, 0), (20, 1)])
def test_a_change_is_tried_where_there_is_time_for_one_run(budget_s, unchanged):
    script = Ticking()
    result = run(script, budget_s, "schedule-gc", recorded_s=20.0)
    assert script.ran == [*[()] * unchanged, ("schedule-gc",)]
    (trial,) = result.trials
    assert (trial.speed_up, trial.interval) == (2.0, (1.0, 2.0))  # nothing is certain
    assert any("no time for an unchanged run" in note for note in result.notes) is (not unchanged)
