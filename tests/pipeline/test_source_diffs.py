"""An answer has the diffs of sources that lie in the working folder, whichever command or function asked for it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import diagnose
from diagnose.cli.main import run
from diagnose.pipeline.rank import analyze_rank
from diagnose.pipeline.sources import with_source_diffs
from diagnose.trace_reader import open_captures

ROOT = Path(__file__).resolve().parents[2]
CAPTURE = ROOT / "tests" / "changes" / "captures" / "many_items"


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(ROOT / "evaluation" / "third_party_scripts" / "many_items.py", tmp_path))


@pytest.fixture(scope="module")
def recorded():
    """Return the answer of the capture, without any source."""
    (capture,) = open_captures([CAPTURE])
    return analyze_rank(capture, draw=False)


def diff_of(d):
    return next(p.diff for p in d.prescriptions if p.id == "compile-model")


def test_python_and_the_commands_make_the_same_diff(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "evaluation" / "third_party_scripts" / "periodic_checkpoint.py", tmp_path)
    capture = CAPTURE.parent / "periodic_checkpoint"
    made = next(p.diff for p in diagnose.analyze_trace(capture).prescriptions if p.id == "save-in-background")
    assert made.startswith("--- a/periodic_checkpoint.py\n")
    assert run(["analyze", str(capture), "--json", "--no-cache", "-o", "report.html"]) == 0
    printed = json.loads(capsys.readouterr().out)
    (change,) = (p for p in printed["prescriptions"] if p["id"] == "save-in-background")
    assert change["diff"] == made
    assert change["trial_method"] == "edited copy"
    assert "the diff below applies with" in Path("report.html").read_text()
    assert Path("report.change-1.save-in-background.diff").read_text() == made


def test_without_a_source_there_is_no_diff(recorded):
    assert diff_of(recorded) == ""


def test_without_a_command_a_file_is_known_by_the_lines_that_were_recorded(script, recorded):
    of_a_loop = replace(recorded, source=replace(recorded.source, command=""))
    assert diff_of(with_source_diffs(of_a_loop)) == diff_of(with_source_diffs(recorded)) != ""


@pytest.mark.parametrize("command", ["many_items.py", ""])
def test_a_script_that_has_changed_since_is_left_alone(script, recorded, command):
    script.write_text("\n" + script.read_text())
    assert diff_of(with_source_diffs(replace(recorded, source=replace(recorded.source, command=command)))) == ""


def test_elsewhere_the_answer_stays_as_it_is(recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert with_source_diffs(recorded) is recorded
