"""How the command ends where changes are tried and where none is, by runs and a clock that the test sets."""

import json
from pathlib import Path

import pytest

from diagnose.changes import CHANGES, patch_of
from diagnose.cli import main as cli
from diagnose.cli import prove as command
from diagnose.pipeline.run import analyze_paths
from diagnose.trials.measuring import TrialResult
from diagnose.trials.prove_result import NOTHING_TRIED
from diagnose.trials.runs import Runner

CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"
NEEDS_GPU = next(name for name in CHANGES if (patch := patch_of(name)) is not None and patch.needs_gpu)


@pytest.fixture
def proving(monkeypatch, tmp_path, capsys):
    """Return a function that proves what a capture prescribes with runs of 10 s, and returns code, JSON and errors."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(command, "record", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")

    def time(runner, ids, *, timeout_s):
        now[0] += min(10.0, timeout_s)
        if timeout_s < 10.0:
            return TrialResult(failure="It was killed.", wall_s=timeout_s)
        steps = (5e6 if ids else 10e6,) * runner.timed
        return TrialResult(steps, (1.0,) * 9, applied=tuple(ids), wall_s=10.0)

    def run(name, *options):
        d = analyze_paths([CAPTURES / name])
        monkeypatch.setattr(command, "analyze_with_progress", lambda *_: d)
        code = cli.run(["prove", "--yes", "--json", "--quiet", *options, "train.py"])
        shown = capsys.readouterr()
        return code, json.loads(shown.out), shown.err

    monkeypatch.setattr(Runner, "time", time)
    return run


def test_a_budget_that_ends_before_any_change_is_tried_ends_with_1(proving):
    code, diagnosis, errors = proving("slow_dataset", "--budget", "15s")
    assert (code, errors.strip()) == (1, f"diagnose: error: {NOTHING_TRIED}")
    assert diagnosis["dominant"] == "data-stall"  # printed all the same
    assert not diagnosis["trials"]


def test_a_budget_with_room_for_a_change_ends_with_0(proving):
    code, diagnosis, errors = proving("slow_dataset", "--budget", "90s")
    assert (code, errors) == (0, "")
    assert diagnosis["trials"][0]["id"] == "load-in-workers"


def test_where_no_change_is_applicable_the_diagnosis_is_the_answer(proving):
    code, diagnosis, errors = proving("feature_service", "--budget", "15s")
    assert (code, errors, diagnosis["trials"]) == (0, "", [])
    assert any("nothing was run" in note["text"] for note in diagnosis["trust"])


def test_where_every_change_is_refused_each_has_its_reason(proving):
    code, diagnosis, errors = proving("slow_dataset", "--budget", "15s", "--apply", NEEDS_GPU)
    assert (code, errors) == (0, "")
    assert [trial["failure"] for trial in diagnosis["trials"]] == ["It needs a GPU, and these steps used none."]
