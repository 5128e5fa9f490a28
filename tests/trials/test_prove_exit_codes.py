"""How the command ends where changes are tried and where none is, by runs and a clock that the test sets."""

import json
from pathlib import Path

import pytest

from diagnose.changes import CHANGES, patch_of
from diagnose.cli import main as cli
from diagnose.cli import prove as command
from diagnose.pipeline.run import analyze_paths
from diagnose.trials.measuring import TrialResult
from diagnose.trials.runs import Runner
from diagnose.trials.trials import INTERRUPTED, NOTHING_TRIED

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
        if ids and tuple(ids) in interrupting:
            raise KeyboardInterrupt
        now[0] += min(10.0, timeout_s)
        if timeout_s < 10.0:
            return TrialResult(failure="It was killed.", wall_s=timeout_s)
        steps = (5e6 if ids else 10e6,) * runner.timed
        return TrialResult(steps, (1.0,) * 9, applied=tuple(ids), wall_s=10.0)

    interrupting = set()

    def run(name, *options, quiet=("--quiet",), interrupted=()):
        interrupting.update({tuple(interrupted)})
        d = analyze_paths([CAPTURES / name])
        monkeypatch.setattr(command, "analyze_with_progress", lambda *_: d)
        code = cli.run(["prove", "--yes", "--json", *quiet, *options, "train.py"])
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
    assert (code, errors) == (0, "")
    assert [trial["failure"] for trial in diagnosis["trials"]] == ["It is yours to make."]
    assert any("nothing was run" in note["text"] for note in diagnosis["trust"])


def test_the_first_line_says_why_change_1_is_not_tried_and_how_an_own_edit_is_measured(proving):
    _, diagnosis, errors = proving("feature_service", "--budget", "15s", quiet=())
    title = diagnosis["prescriptions"][0]["title"]
    lines = [line.removeprefix("diagnose: ") for line in errors.splitlines()]
    first = lines.index(f"not trying change 1: {title}. It is yours to make.")
    assert lines[first + 1].startswith("to measure your own edit of the script: diagnose prove --against EDITED.py ")
    assert lines[first - 1].startswith("this runs python train.py repeatedly for up to 15 s, ")
    assert lines[first + 2].startswith("nothing is tried: No prescription of this diagnosis can be applied")
    assert sum(title in line for line in lines) == 1
    _, _, errors = proving("feature_service", "--budget", "150s", quiet=())
    assert "repeatedly for up to 150 s, " in errors  # not rounded to less


def test_what_is_tried_is_named_before_and_each_line_says_how_long_is_left(proving):
    _, diagnosis, errors = proving("slow_dataset", "--budget", "90s", quiet=())
    title = diagnosis["prescriptions"][0]["title"]
    assert f"diagnose: trying change 1: {title}\n" in errors
    assert "diagnose: running it with load-in-workers (70 s of the budget left)\n" in errors


def test_the_author_s_edit_is_measured_in_the_place_of_the_prescriptions(proving, tmp_path):
    (tmp_path / "edited.py").write_text("")
    code, diagnosis, errors = proving("slow_dataset", "--budget", "90s", "--against", "edited.py")
    assert (code, errors) == (0, "")
    assert [(trial["id"], trial["title"]) for trial in diagnosis["trials"]] == [("own-edit", "Your edit of the script")]
    assert diagnosis["trials"][0]["speed_up"] == 2.0


def test_an_edit_that_does_not_exist_is_a_sentence(proving):
    code = cli.run(["prove", "--yes", "--against", "none.py", "train.py"])
    assert code == 2


@pytest.mark.parametrize(("name", "which"), [("slow_dataset", "makes change 1"), ("loop_optimizer", "")])
def test_a_patch_says_which_change_it_makes(proving, tmp_path, name, which):
    script = "from torch.utils.data import DataLoader\n\nfor batch in DataLoader(range(8)):\n    pass\n"
    (tmp_path / "train.py").write_text(script)
    options = ("--budget", "200s", "--apply", "load-in-workers", "--write-patch", "fix.patch")
    _, diagnosis, errors = proving(name, *options, quiet=())
    assert "+for batch in DataLoader(range(8), num_workers=" in (tmp_path / "fix.patch").read_text()
    title = next(p["title"] for p in diagnosis["prescriptions"])
    if which:
        assert f"diagnose: fix.patch {which}: {title}\n" in errors
    else:
        assert "diagnose: fix.patch makes load-in-workers: Load batches" in errors
        assert f"diagnose: fix.patch does not make change 1: {title}\n" in errors


def test_ctrl_c_prints_what_is_known_and_ends_with_130(proving, tmp_path):
    options = ("--budget", "600s", "--apply", "load-in-workers,schedule-gc", "-o", "report.json")
    code, diagnosis, _ = proving("slow_dataset", *options, interrupted=("schedule-gc",))
    assert code == 130
    assert [(trial["id"], trial["failure"]) for trial in diagnosis["trials"]] == [
        ("load-in-workers", ""),
        ("schedule-gc", INTERRUPTED),
    ]
    assert json.loads((tmp_path / "report.json").read_text())["trials"] == diagnosis["trials"]


def test_where_every_change_is_refused_each_has_its_reason(proving):
    code, diagnosis, errors = proving("slow_dataset", "--budget", "15s", "--apply", NEEDS_GPU)
    assert (code, errors) == (0, "")
    assert [trial["failure"] for trial in diagnosis["trials"]] == ["It needs a GPU, and these steps used none."]
