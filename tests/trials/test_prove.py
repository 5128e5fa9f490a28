"""The order and the judgement of runs, with a script that is a table of step times."""

from dataclasses import replace

import pytest

from diagnose.errors import CaptureError
from diagnose.trials.candidates import Candidate
from diagnose.trials.in_sequence import Recorded, Schedule
from diagnose.trials.measuring import TrialResult
from diagnose.trials.prove import prove

LOSSES = tuple(1.0 / (i + 1) for i in range(20))


class Script:
    """Takes ``base`` ms a step, times the factor of each patch."""

    schedule = Schedule()
    turns = None

    def __init__(self, factors, base=10.0, losses=None, fails=(), wall_s=0.0):
        self.factors, self.base, self.fails, self.wall_s = factors, base, fails, wall_s
        self.losses = losses or {}
        self.ran, self.timeouts = [], []
        self.warm_up = self.timed = 0

    def time(self, ids, *, timeout_s):
        self.ran.append(tuple(ids))
        self.timeouts.append(timeout_s)
        if any(name in self.fails for name in ids):
            return TrialResult(failure="It ended with exit code 1 before anything was measured.")
        step = self.base * 1e6
        for name in ids:
            step *= self.factors.get(name, 1.0)
        losses = next((self.losses[name] for name in ids if name in self.losses), LOSSES)
        wobble = [step * (1 + 0.001 * (i % 5)) for i in range(self.timed)]
        return TrialResult(step_ns=tuple(wobble), losses=losses, peak_bytes=100, wall_s=self.wall_s, applied=tuple(ids))


def chosen(*names):
    return [Candidate(name, name.title(), 0.5) for name in names]


def run(script, *names, budget_s=1e6):
    return prove(script, chosen(*names), budget_s, lambda _text: None)


def test_each_candidate_stands_between_two_baselines():
    script = Script({"schedule-gc": 0.5})
    run(script, "schedule-gc", "sham")
    assert script.ran == [
        (), (), (),
        ("schedule-gc",), ("schedule-gc",), (),
        ("schedule-gc",), ("schedule-gc",), (),  # it was faster, so it is measured again
        ("sham",), ("sham",), (),
    ]  # fmt: skip


def test_what_was_faster_once_only_is_no_gain():
    class Lucky(Script):
        def time(self, ids, *, timeout_s):
            self.factors = {"schedule-gc": 0.5 if self.ran.count(("schedule-gc",)) < 2 else 1.0}
            return super().time(ids, timeout_s=timeout_s)

    for budget_s, runs in ((1e6, 12), (50, 8)):
        script = Lucky({}, wall_s=10.0)
        result = run(script, "schedule-gc", budget_s=budget_s)
        (trial,) = result.trials
        assert trial.interval[0] <= 1.0
        assert result.best == ()
        assert len(script.ran) == runs
    assert "may have been chance" in trial.note


def test_what_was_slower_once_only_is_no_loss():
    class Unlucky(Script):
        def time(self, ids, *, timeout_s):
            self.factors = {"schedule-gc": 1.5 if self.ran.count(("schedule-gc",)) < 2 else 1.0}
            return super().time(ids, timeout_s=timeout_s)

    (trial,) = run(Unlucky({}, wall_s=10.0), "schedule-gc", budget_s=50).trials
    assert trial.interval[0] < 1.0 <= trial.interval[1]
    assert "may have been chance" in trial.note


class Uneven(Script):
    """Takes half as long again in every second run, as on a machine that others use."""

    def time(self, ids, *, timeout_s):
        run = super().time(ids, timeout_s=timeout_s)
        return replace(run, step_ns=tuple(ns * 1.5 for ns in run.step_ns)) if len(self.ran) % 2 else run


def test_what_uneven_runs_leave_open_is_run_again():
    script = Uneven({"schedule-gc": 0.5})
    result = run(script, "schedule-gc", "sham")
    gain, sham = result.trials
    assert result.best == ("schedule-gc",)
    assert gain.speed_up == pytest.approx(2.0, rel=0.01)
    assert sham.speed_up == pytest.approx(1.0, abs=0.01)
    assert sham.interval[0] < 1 < sham.interval[1]
    assert script.ran.count(("sham",)) == 6
    assert all(len(trial.step_ms) == script.timed * script.ran.count((trial.id,)) for trial in result.trials)


def test_what_is_faster_in_two_of_three_pairs_of_runs_is_no_gain():
    class Fading(Script):
        def time(self, ids, *, timeout_s):
            earlier = self.ran.count(("schedule-gc",))
            self.factors = {"schedule-gc": 0.55 if earlier % 4 < 2 else 1.02}
            return super().time(ids, timeout_s=timeout_s)

    result = run(Fading({}), "schedule-gc")
    (trial,) = result.trials
    assert trial.interval[0] <= 1.0
    assert result.best == ()


def test_what_is_open_is_not_run_again_when_the_budget_is_needed_for_what_follows():
    script = Uneven({"schedule-gc": 0.9}, wall_s=10.0)
    run(script, "schedule-gc", budget_s=40)
    assert script.ran == [(), (), ("schedule-gc",), ("schedule-gc",), ()]


def test_a_gain_that_there_was_no_time_to_see_again_says_so():
    class Slow(Script):
        def time(self, ids, *, timeout_s):
            return replace(super().time(ids, timeout_s=timeout_s), wall_s=10.0 if len(self.ran) < 6 else 1e6)

    trial = run(Slow({"schedule-gc": 0.5}), "schedule-gc", budget_s=1000).trials[0]
    assert trial.interval[0] > 1.0
    assert "measured once only" in trial.note


def test_a_gain_is_measured_and_a_control_is_none():
    result = run(Script({"schedule-gc": 0.5}), "schedule-gc", "sham")
    gain, sham = result.trials
    assert gain.speed_up == pytest.approx(2.0)
    assert gain.interval[0] > 1.9
    assert gain.numerics == "identical"
    assert gain.predicted_ms == pytest.approx(5.0, rel=0.01)
    assert sham.interval[0] <= 1.0 <= sham.interval[1]
    assert result.best == ("schedule-gc",)


def test_gains_are_run_together_and_each_is_left_out():
    script = Script({"schedule-gc": 0.5, "fused-optimizer": 0.8, "load-in-workers": 0.9})
    result = run(script, "schedule-gc", "fused-optimizer", "load-in-workers")
    whole = result.trials[3]
    assert whole.kind == "combination"
    assert whole.speed_up == pytest.approx(1 / (0.5 * 0.8 * 0.9))
    left_out = {trial.id: trial for trial in result.trials[4:]}
    assert set(left_out) == {"schedule-gc", "fused-optimizer", "load-in-workers"}
    assert all(trial.kind == "without" for trial in left_out.values())
    assert left_out["schedule-gc"].speed_up == pytest.approx(1 / (0.8 * 0.9))
    assert left_out["schedule-gc"].ids == ("fused-optimizer", "load-in-workers")


def test_gradient_norms_stand_beside_each_other():
    class Measures(Script):
        def time(self, ids, *, timeout_s):
            return replace(super().time(ids, timeout_s=timeout_s), grad_norms=(2.0, 4.0) if ids else (2.0, 5.0))

    trial = run(Measures({}), "autocast").trials[0]
    assert trial.grad_norms == ((2.0, 5.0), (2.0, 4.0))
    assert trial.grad_drift == pytest.approx(0.1)


def test_of_changes_to_the_same_thing_the_best_is_combined():
    script = Script({"foreach-optimizer": 0.9, "fused-optimizer": 0.8, "schedule-gc": 0.5})
    result = run(script, "foreach-optimizer", "fused-optimizer", "schedule-gc")
    assert result.best == ("schedule-gc", "fused-optimizer")
    assert result.trials[3].ids == ("schedule-gc", "fused-optimizer")


def test_a_change_that_changes_nothing_is_no_gain_whatever_the_clock_says():
    class Idle(Script):
        def time(self, ids, *, timeout_s):
            return replace(super().time(ids, timeout_s=timeout_s), applied=(), refused=("a model",) if ids else ())

    script = Idle({"schedule-gc": 0.5})
    result = run(script, "schedule-gc")
    assert result.trials[0].failure == "It found nothing to change. Left alone: a model."
    assert result.best == ()
    assert script.ran == [(), (), (), ("schedule-gc",)]


def test_a_change_that_is_refused_is_not_run():
    script = Script({})
    result = prove(script, [Candidate("autocast", "Fp16", skip_reason="It needs a GPU.")], 1e6, lambda _text: None)
    assert [(t.id, t.failure, t.step_ms) for t in result.trials] == [("autocast", "It needs a GPU.", ())]
    assert script.ran == []


def test_steps_that_a_scaler_skips_are_told():
    class Skips(Script):
        def time(self, ids, *, timeout_s):
            return replace(super().time(ids, timeout_s=timeout_s), skipped_steps=2 if ids else None)

    trial = run(Skips({}), "autocast").trials[0]
    assert trial.skipped_steps == (0, 2)
    assert "2 optimizer steps were skipped" in trial.note
    assert run(Script({}), "sham").trials[0].skipped_steps is None


def test_a_slower_change_and_one_that_drifts_are_results_but_no_gains():
    drifted = tuple(loss * 2 for loss in LOSSES)
    script = Script({"schedule-gc": 1.5, "autocast": 0.5}, losses={"autocast": drifted})
    result = run(script, "schedule-gc", "autocast")
    assert result.trials[0].interval[1] < 1.0
    assert result.trials[1].numerics == "drifted"
    assert result.best == ()


def test_a_run_that_diverges_out_of_several_is_no_gain():
    class Diverges(Script):
        def time(self, ids, *, timeout_s):
            run = super().time(ids, timeout_s=timeout_s)
            return replace(run, losses=(*LOSSES[:9], *(5.0,) * 11)) if self.ran.count(("autocast",)) == 3 else run

    result = run(Diverges({"autocast": 0.5}), "autocast")
    (trial,) = result.trials
    assert (trial.numerics, result.best) == ("drifted", ())
    assert trial.worst_drift > trial.drift_limits[1]
    assert trial.losses[1][9] == 5.0
    assert "In 1 of 4 runs with the change" in trial.note


def test_a_run_with_a_change_that_fails_once_is_named():
    class Fails(Script):
        def time(self, ids, *, timeout_s):
            run = super().time(ids, timeout_s=timeout_s)
            return TrialResult(failure="It ended.") if self.ran.count(("sham",)) == 2 and ids else run

    (trial,) = run(Fails({}), "sham").trials
    assert (trial.failure, trial.note.endswith("One run with it failed. It ended.")) == ("", True)


def test_a_change_that_crashes_is_reported_and_the_others_go_on():
    result = run(Script({"sham": 1.0}, fails=("compile-model",)), "compile-model", "sham")
    assert result.trials[0].failure.startswith("It ended with exit code 1")
    assert result.trials[0].step_ms == ()
    assert result.trials[1].failure == ""


def test_the_budget_ends_the_trials_and_says_which_are_missing(monkeypatch):
    now = iter(range(0, 10_000, 10))
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    result = run(Script({"schedule-gc": 0.5}, wall_s=10.0), "schedule-gc", "sham", budget_s=100)
    assert [t.id for t in result.trials] == ["schedule-gc"]
    assert any("sham" in note and "--budget" in note for note in result.notes)


def test_a_script_that_cannot_be_measured_at_all_is_an_error():
    class Ends:
        warm_up = timed = 0
        schedule = Schedule()
        turns = None

        def time(self, ids, *, timeout_s):
            return TrialResult(failure="The script ended after 3 steps that could be timed; it must run for more.")

    with pytest.raises(CaptureError, match="ended after 3 steps"):
        run(Ends(), "sham")


def test_what_compiles_may_take_most_of_the_budget_until_its_first_step():
    script = Script({}, wall_s=2.0)
    run(script, "compile-model", "sham", budget_s=600)
    allowed = dict(zip(script.ran, script.timeouts, strict=True))
    assert allowed["compile-model",] == pytest.approx(400, abs=1)
    assert allowed["sham",] == 60


def test_short_steps_are_timed_more_often_than_long_ones():
    short, long = Script({}, base=1.0), Script({}, base=3000.0)
    run(short, "sham")
    run(long, "sham")
    assert short.timed > 100
    assert long.timed < 10


def test_steps_that_a_recording_has_timed_spare_a_run():
    script = Script({})
    prove(script, chosen("sham"), 1e6, lambda _text: None, Recorded([10e6] * 20))
    assert script.ran == [(), (), ("sham",), ("sham",), ()]
    assert (script.timed, script.warm_up) == (200, 67)


def test_a_run_times_whole_periods_of_the_steps_that_recur():
    script = Script({}, base=200.0)
    prove(script, chosen("sham"), 1e6, lambda _text: None, Recorded(([200e6] * 8 + [300e6]) * 3))
    assert script.timed == 27
