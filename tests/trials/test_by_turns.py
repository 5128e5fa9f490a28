"""Trials by turns, with a script that is a table of gains on a machine of numbers."""

import re
from math import inf, prod

import pytest

from diagnose.errors import CaptureError, OriginalsChangedError
from diagnose.trials.by_turns import NO_CONTROL, NoTurnsError, by_turns
from diagnose.trials.candidates import Candidate
from diagnose.trials.in_sequence import Recorded, Schedule
from diagnose.trials.measuring import TrialResult
from diagnose.trials.prove import prove
from diagnose.trials.trials import ALONE_IS_BEST, CUT_OFF, INTERRUPTED, NOTHING_TRIED
from tests.trials.machine import FakeForm, Machine

LOSSES = tuple(1.0 / (i + 1) for i in range(20))
GB = 1 << 30


class Live:
    """A process of a form: it takes ``ready_s`` until it is ready, and memory of the device."""

    def __init__(self, runs, ids, timeout_s):
        self.runs, self.ids, self.timeout_s = runs, ids, timeout_s
        self.form = FakeForm(runs.machine, runs.gain(ids), step_s=runs.step_s, spread=runs.spread)
        self.form.renew()
        self.steps, self.device_free, self.is_alive = [], None, False

    def host_bytes(self):
        return GB

    def start(self):
        self.is_alive = True
        self.runs.most_alive = max(self.runs.most_alive, self.runs.num_alive)

    def wait_for_import(self):
        pass

    def get_ready(self):
        self.runs.machine.now += min(self.runs.ready_s, self.timeout_s)
        if self.runs.ready_s > self.timeout_s or self.runs.fails(self.ids, self.runs.num_alive):
            raise CaptureError("It ended with exit code 1.")
        if self.runs.device_bytes is not None:
            self.device_free = self.runs.device_bytes - 10 * GB * self.runs.num_alive

    def block(self, seconds):
        block = self.form.block(seconds)
        self.steps += block.step_ns
        return block

    def stop(self):
        pass

    def end(self):
        self._note_end()
        applied = tuple(name for name in self.ids if name not in self.runs.idle)
        return TrialResult(tuple(self.steps), self.runs.losses.get(self.ids, LOSSES), applied=applied, peak_bytes=100)

    def failed(self, why):
        self._note_end()
        return TrialResult(failure=why)

    def _note_end(self):
        self.kill()
        self.runs.num_ended += 1
        if self.runs.num_ended == self.runs.changes_after:
            self.runs.changed = "x was changed."

    def kill(self):
        self.is_alive = False


class Script:
    """Steps of 20 ms, shorter by the gain of each change; ``schedule`` and ``time`` are for runs in sequence."""

    schedule = Schedule()
    why_no_turns = ""
    warm_up = timed = 0
    edits = True

    def __init__(self, gains, **options):
        self.machine = Machine(0, drift=0.0, stall=0.0, spell=1.0)
        self.gains = gains
        self.spread, self.step_s, self.ready_s, self.device_bytes = 0.003, 0.02, 2.0, None
        self.fails, self.idle, self.losses = (lambda _ids, _num_alive: False), (), {}
        self.started, self.ran = [], []
        self.changed, self.changes_after, self.num_ended, self.most_alive = "", 0, 0, 0
        self.interaction, self.copies = {}, inf
        for name, value in options.items():
            setattr(self, name, value)

    @property
    def num_alive(self):
        return sum(each.is_alive for each in self.started)

    def gain(self, ids):
        return prod(self.gains.get(name, 1.0) for name in ids) * self.interaction.get(ids, 1.0)

    def live(self, number, ids, *, timeout_s):
        if self.changed:
            raise OriginalsChangedError(self.changed)
        self.started.append(Live(self, tuple(ids), timeout_s))
        return self.started[-1]

    def num_copies(self):
        return self.copies

    def time(self, ids, *, timeout_s):
        self.ran.append(tuple(ids))
        return TrialResult((self.step_s * 1e9 / self.gain(ids),) * self.timed, LOSSES, applied=tuple(ids))


@pytest.fixture
def prove_it(monkeypatch):
    """Return a function that measures the changes of a script; every process has ended afterwards."""

    def run(script, *names, budget_s=600.0):
        monkeypatch.setattr("time.monotonic", lambda: script.machine.now)
        script.said = []
        chosen = [Candidate(name, name.title(), 0.5) for name in names]
        try:
            return by_turns(script, chosen, budget_s, script.said.append, [script.step_s * 1e9] * 20)
        finally:
            assert script.num_alive == 0

    return run


def test_a_gain_is_found_and_a_control_is_none(prove_it):
    script = Script({"schedule-gc": 1.5})
    result = prove_it(script, "schedule-gc", "sham")
    gain, sham = result.trials
    assert gain.interval[0] < 1.5 < gain.interval[1]
    assert gain.interval[0] > 1.4
    assert sham.interval[0] < 1 < sham.interval[1]
    assert (gain.numerics, gain.peak_bytes, gain.losses) == ("identical", (100, 100), (LOSSES, LOSSES))
    assert gain.mean_ms == pytest.approx((20, 20 / gain.speed_up), rel=0.01)
    assert gain.predicted_ms == pytest.approx(10, rel=0.01)
    assert gain.noise < 0.02
    assert result.best == ("schedule-gc",)
    assert script.said[0].endswith("unchanged as a control, and with schedule-gc, sham")
    assert script.said[1].startswith("0 of 2 decided, at most ")
    assert script.said[1].endswith(" s of turns left: schedule-gc not known yet, sham not known yet")
    ratios = r"left: schedule-gc 1\.[45]\d x so far, sham \d\.\d\d x so far$"
    assert any(re.search(ratios, text) for text in script.said)
    assert any(text.startswith("2 of 2 decided, ") for text in script.said)  # both at once: nothing disturbs them


def test_gains_take_turns_together_and_each_is_left_out(prove_it):
    script = Script({"schedule-gc": 2.0, "fused-optimizer": 1.25, "load-in-workers": 1.1})
    result = prove_it(script, "schedule-gc", "fused-optimizer", "load-in-workers")
    whole = result.trials[3]
    assert (whole.kind, whole.ids) == ("combination", ("schedule-gc", "fused-optimizer", "load-in-workers"))
    assert whole.speed_up == pytest.approx(2.75, rel=0.02)
    left_out = {trial.id: trial for trial in result.trials[4:]}
    assert all(trial.kind == "without" for trial in left_out.values())
    assert left_out["schedule-gc"].speed_up == pytest.approx(1.375, rel=0.02)
    assert left_out["fused-optimizer"].ids == ("schedule-gc", "load-in-workers")
    assert len(left_out) == 3
    assert result.best == whole.ids


def test_what_hinders_the_others_is_left_out(prove_it):
    names = ("schedule-gc", "fused-optimizer", "load-in-workers")
    script = Script({names[0]: 2.0, names[1]: 1.25, names[2]: 1.1}, interaction={names: 0.85})
    result = prove_it(script, *names)
    assert result.best == names[:2]
    assert "Without load-in-workers the others give more, so it is left out." in result.notes


def test_gains_that_spoil_each_other_leave_the_largest(prove_it):
    names = ("schedule-gc", "fused-optimizer")
    result = prove_it(Script({names[0]: 2.0, names[1]: 1.25}, interaction={names: 0.6}), *names)
    assert result.trials[2].interval[0] > 1
    assert result.best == names[:1]
    assert ALONE_IS_BEST in result.notes


def test_of_what_drifts_nothing_is_a_gain(prove_it):
    script = Script({"autocast": 2.0}, losses={("autocast",): tuple(2 * loss for loss in LOSSES)})
    result = prove_it(script, "autocast")
    assert (result.trials[0].numerics, result.best) == ("drifted", ())


def test_a_change_that_finds_nothing_is_not_started_again(prove_it):
    script = Script({"schedule-gc": 1.5}, idle=("schedule-gc",))
    result = prove_it(script, "schedule-gc", "sham")
    assert result.trials[0].failure == "It found nothing to change."
    assert sum(each.ids == ("schedule-gc",) for each in script.started) == 1
    assert sum(each.ids == ("sham",) for each in script.started) >= 2
    assert result.best == ()


def test_a_change_that_fails_is_reported_and_the_others_go_on(prove_it):
    script = Script({"schedule-gc": 1.5}, fails=lambda ids, _num: ids == ("compile-model",))
    result = prove_it(script, "compile-model", "schedule-gc")
    assert [trial.failure for trial in result.trials] == ["It ended with exit code 1.", ""]
    assert result.best == ("schedule-gc",)


def test_a_change_that_fails_amid_its_turns_has_failed(prove_it, monkeypatch):
    block = Live.block

    def failing(self, seconds):
        if self.ids == ("sham",) and len(self.steps) > 20:
            raise CaptureError("It ended with exit code 3.")
        return block(self, seconds)

    monkeypatch.setattr(Live, "block", failing)
    result = prove_it(Script({"schedule-gc": 1.5}), "sham", "schedule-gc")
    assert [trial.failure for trial in result.trials] == ["It ended with exit code 3.", ""]


def test_memory_bounds_how_many_are_alive_and_the_rest_comes_later(prove_it):
    script = Script({"schedule-gc": 1.5, "fused-optimizer": 1.25}, device_bytes=45 * GB)
    result = prove_it(script, "schedule-gc", "fused-optimizer", "sham", "autocast")
    assert script.most_alive == 4
    assert [trial.id for trial in result.trials[:4]] == ["schedule-gc", "fused-optimizer", "sham", "autocast"]
    assert all(not trial.failure for trial in result.trials)
    assert result.best == ("schedule-gc", "fused-optimizer")


@pytest.mark.parametrize("bounds", [{"device_bytes": 28 * GB}, {"copies": 2}])
def test_without_room_for_a_control_each_change_is_measured_against_one_unchanged_form(prove_it, bounds):
    script = Script({"schedule-gc": 1.5}, **bounds)
    result = prove_it(script, "schedule-gc", "sham")
    assert script.most_alive == 2
    assert NO_CONTROL in result.notes
    assert result.best == ("schedule-gc",)
    assert result.trials[0].noise is None


def test_what_cannot_be_there_twice_runs_in_sequence_and_says_so(monkeypatch):
    script = Script({"schedule-gc": 1.5}, fails=lambda _ids, num_alive: num_alive > 1)
    monkeypatch.setattr("time.monotonic", lambda: script.machine.now)
    script.turns = script
    said = []
    recorded = Recorded([20e6] * 20)
    monkeypatch.setattr(Live, "block", lambda _self, _seconds: pytest.fail("nothing may take a turn"))
    result = prove(script, [Candidate("schedule-gc", "Collect")], 600.0, said.append, recorded)
    why = "A second copy of the script cannot run together with the first, so runs follow one another. It ended "
    why += "with exit code 1"
    assert result.notes[0] == f"{why}."
    assert f"{why}." in said
    assert script.ran[:3] == [(), (), ("schedule-gc",)]
    assert result.best == ("schedule-gc",)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"why_no_turns": "Ranks cannot."}, "Ranks cannot"),
        ({"step_s": 30.0}, "too little time"),
        ({"fails": lambda _ids, _num: True}, "Unchanged, the script cannot take turns"),
    ],
)
def test_what_cannot_take_turns_says_why(prove_it, options, why):
    with pytest.raises(NoTurnsError, match=why):
        prove_it(Script({}, **options), "sham")


def test_files_that_change_end_it_and_what_was_measured_stays(prove_it):
    script = Script({"schedule-gc": 1.5}, changes_after=3)
    result = prove_it(script, "schedule-gc", "sham")
    assert [trial.failure for trial in result.trials] == ["", ""]
    assert all(trial.doubt == "noise not known" for trial in result.trials)
    assert result.notes[-1] == "x was changed."
    assert result.best == ()
    assert len(script.started) == 4


def test_files_that_change_while_it_starts_end_it(prove_it):
    script = Script({}, fails=lambda ids, _num: ids == ("sham",), changes_after=1)
    result = prove_it(script, "sham", "schedule-gc")
    assert (result.trials, result.notes, result.nothing_tried) == ([], ["x was changed."], False)
    assert len(script.started) == 2


def test_a_short_budget_gives_one_process_each_and_nothing_certain(prove_it):
    result = prove_it(Script({"schedule-gc": 1.5}), "schedule-gc", budget_s=11.0)
    (trial,) = result.trials
    assert trial.speed_up == pytest.approx(1.5, rel=0.05)
    assert trial.interval[0] <= 1
    assert trial.doubt == "noise not known"
    assert not result.nothing_tried


@pytest.mark.parametrize("step_s", [0.5, 1.0, 2.0])
def test_slow_steps_have_the_rounds_that_they_need_as_long_as_the_budget_lasts(prove_it, step_s):
    script = Script({"schedule-gc": 1.5}, step_s=step_s, ready_s=10 * step_s)
    (trial,) = prove_it(script, "schedule-gc", budget_s=1200.0).trials
    assert (trial.failure, trial.doubt) == ("", "")
    assert trial.interval[0] > 1
    assert script.machine.now <= 1200


@pytest.mark.parametrize("budget_s", [150.0, 200.0, 300.0])
def test_what_is_kept_for_gains_together_is_spent_where_there_are_none(prove_it, budget_s):
    script = Script({}, ready_s=8.0, step_s=0.3)
    result = prove_it(script, "schedule-gc", "sham", "autocast", budget_s=budget_s)
    is_short = [t.id for t in result.trials if t.failure == CUT_OFF or t.doubt == "noise not known"]
    is_short += [note for note in result.notes if "--budget" in note]
    assert not is_short or script.machine.now > 0.85 * budget_s
    assert not any("--budget" in text for text in script.said if script.machine.now < 0.85 * budget_s)


def test_a_change_that_finds_nothing_has_no_factor_in_a_short_budget_either(prove_it):
    result = prove_it(Script({}, idle=("schedule-gc",)), "schedule-gc", budget_s=11.0)
    assert [trial.failure for trial in result.trials] == ["It found nothing to change."]
    assert result.best == ()


def test_processes_that_start_more_slowly_later_do_not_outlast_the_budget(prove_it, monkeypatch):
    get_ready = Live.get_ready

    def slower(self):
        self.runs.ready_s *= 1.5
        get_ready(self)

    monkeypatch.setattr(Live, "get_ready", slower)
    script = Script({"schedule-gc": 1.5}, ready_s=1.0)
    result = prove_it(script, "schedule-gc", budget_s=60.0)
    assert script.machine.now <= 61
    assert result.trials[0].speed_up == pytest.approx(1.5, rel=0.05)
    assert all(each.ends == 60.0 for each in script.started)


def interrupt(monkeypatch, name, when):
    """Let Ctrl-C come once, in a method of the processes, as soon as ``when`` holds for one."""
    method, left = getattr(Live, name), [KeyboardInterrupt()]

    def interrupted(self, *args):
        if left and when(self):
            raise left.pop()
        return method(self, *args)

    monkeypatch.setattr(Live, name, interrupted)


def test_what_is_known_when_it_is_interrupted_stays(prove_it, monkeypatch):
    interrupt(monkeypatch, "block", lambda live: not live.ids and len(live.steps) > 150)
    script = Script({"schedule-gc": 1.5})
    result = prove_it(script, "schedule-gc", "sham")
    gain, sham = result.trials
    assert gain.speed_up == pytest.approx(1.5, rel=0.05)
    assert (gain.doubt, sham.doubt) == ("interrupted", "interrupted")
    assert "not certain yet" in gain.note
    assert (result.interrupted, result.best, result.nothing_tried) == (True, (), False)
    assert any("what is known so far" in text for text in script.said)


def test_when_it_is_interrupted_before_its_turns_nothing_is_known(prove_it, monkeypatch):
    interrupt(monkeypatch, "get_ready", lambda live: bool(live.ids))
    result = prove_it(Script({"schedule-gc": 1.5}), "schedule-gc", "sham")
    assert [trial.failure for trial in result.trials] == [INTERRUPTED, INTERRUPTED]
    assert result.interrupted
    assert not result.nothing_tried


def test_what_was_certain_before_it_is_interrupted_is_a_gain(prove_it, monkeypatch):
    interrupt(monkeypatch, "get_ready", lambda live: len(live.ids) > 1)
    result = prove_it(Script({"schedule-gc": 1.5, "fused-optimizer": 1.25}), "schedule-gc", "fused-optimizer")
    assert [trial.doubt for trial in result.trials[:2]] == ["", ""]
    assert result.interrupted
    assert result.best == ("schedule-gc",)


def test_a_budget_that_ends_before_anything_is_ready_says_so(prove_it):
    script = Script({"schedule-gc": 1.5}, ready_s=20.0)
    result = prove_it(script, "schedule-gc", "sham", budget_s=15.0)
    assert result.nothing_tried
    assert NOTHING_TRIED in result.notes
    assert all(trial.failure == CUT_OFF for trial in result.trials)
    assert script.machine.now <= 20


def test_budget_bounds_how_many_are_tried_and_names_the_rest(prove_it):
    script = Script({"schedule-gc": 1.5}, ready_s=5.0)
    result = prove_it(script, "schedule-gc", "sham", "autocast", "fused-optimizer", budget_s=55.0)
    assert result.trials[0].id == "schedule-gc"
    assert result.best == ("schedule-gc",)
    assert any("fused-optimizer could be run" in note for note in result.notes)
    assert script.machine.now <= 60


def test_what_compiles_may_take_long_until_it_is_ready(prove_it):
    script = Script({})
    prove_it(script, "compile-model", "sham", budget_s=600.0)
    allowed = {each.ids: each.timeout_s for each in script.started[:4]}
    assert allowed["compile-model",] > 200
    assert allowed["sham",] == 60


def test_a_change_that_is_refused_is_not_run(monkeypatch):
    script = Script({})
    result = by_turns(script, [Candidate("autocast", "A", skip_reason="It needs a GPU.")], 60.0, lambda _text: None)
    assert [(trial.id, trial.failure) for trial in result.trials] == [("autocast", "It needs a GPU.")]
    assert script.started == []
