"""A sealed set from its first day to the page: fixed, packed, answered, opened, judged by a reader, shown."""

import json
import sys
from dataclasses import replace

import pytest
import run
from yardstick.answer import Answer, NoAnswerError
from yardstick.sets import read_sets
from yardstick.sheet import read_sheet, write_sheet
from yardstick.tools import TOOLS

SLOW = {"healthy": False, "cause": "copies the buffer", "lines": [3], "repair": "no copy", "harmful": "a larger batch"}
TRUTH = [
    {"name": "copies", **SLOW, "share_saved": 0.5},
    {"name": "breaks", **SLOW, "share_saved": 0.2},
    {"name": "calm", "healthy": True, "cause": "", "lines": [], "repair": ""},
]
ANSWERS = {
    "copies": Answer("Python between operators", ("python-stall",), (("copies.py", 3, 3),), "Move it", "", 0.4),
    "calm": Answer(),
}


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return a function that runs the command on a manifest of one set; a tool that was asked is on its list."""
    for each in TRUTH:
        (tmp_path / f"{each['name']}.py").write_text("pass\n")
    (tmp_path / "truth.json").write_text(json.dumps(TRUTH))
    source = {"name": "new", "title": "scripts", "author": "a stranger", "is_blind": True, "machine": "CPU"}
    source |= {"licence": "MIT", "opened": "", "reader": "entries"}
    source |= {"truth": str(tmp_path / "truth.json"), "script": str(tmp_path / "{name}.py")}
    (tmp_path / "manifest.json").write_text(json.dumps([source]))
    (tmp_path / "hashes.json").write_text("{}")
    asked = []

    def ask(_python, subject, _folder):
        asked.append(subject.file.stem)
        if subject.file.stem == "breaks":
            raise NoAnswerError("exit 1")
        return subject.file.stem

    monkeypatch.setitem(TOOLS, "diagnose", replace(TOOLS["diagnose"], ask=ask, read=ANSWERS.__getitem__))
    fixed = ["--manifest", tmp_path / "manifest.json", "--sheet", tmp_path / "sheet.csv", "--tool", "diagnose"]

    def main(*words):
        monkeypatch.setattr(sys, "argv", ["run.py", *map(str, (*fixed, *words))])
        return run.main()

    main.asked = asked
    return main


def test_the_whole_life_of_a_sealed_set(command, tmp_path, monkeypatch, capsys):
    truth, packed, page = tmp_path / "truth.json", tmp_path / "truth.sealed", tmp_path / "page.md"
    keep = ("--keep", tmp_path / "kept")
    written = truth.read_text()

    command("--fix", "new")
    hashes = (tmp_path / "hashes.json").read_text()
    command("--seal", "new")
    assert not truth.exists()
    assert "copies the buffer" not in packed.read_text()

    with monkeypatch.context() as unread:
        unread.setattr("yardstick.readers.read_truth", lambda _: pytest.fail("the truth was read"))
        assert command("--part", "sealed", *keep) == 0
    assert command.asked == ["copies", "breaks", "calm"]
    assert "the truth stays sealed" in capsys.readouterr().out

    assert command("--open", "2026-12-01", *keep, "--write", page) == 0
    assert command.asked == ["copies", "breaks", "calm"]
    assert not packed.exists()
    (opened,) = read_sets(tmp_path / "manifest.json", tmp_path / "hashes.json")
    assert (opened.part, opened.opened) == ("development", "2026-12-01")
    assert (tmp_path / "hashes.json").read_text() == hashes
    entries = json.loads(truth.read_text())
    firsts = {entry["name"]: entry.pop("first_answer") for entry in entries}
    assert entries == json.loads(written)
    assert firsts["copies"] == {
        "cause": "open",
        "line": "right",
        "change": "open",
        "predicted_percent": 40.0,
        "answered": "Python between operators; Move it",
        "sheet": next(iter(read_sheet(tmp_path / "sheet.csv"))),
    }
    assert (firsts["breaks"]["cause"], firsts["breaks"]["answered"]) == ("no answer", "exit 1")
    assert firsts["calm"]["cause"] == "silent"
    assert "| new | 2 |" not in page.read_text()

    rows = read_sheet(tmp_path / "sheet.csv")
    rows[firsts["copies"]["sheet"]].update(cause="fair", change="right")
    write_sheet(tmp_path / "sheet.csv", [], rows)
    assert command(*keep, "--write", page) == 0
    assert "| new | 2 | 0 (0–66%) | 1 (9–91%) | 1 (9–91%) | 1 (9–91%) | 0 | 1 of 1 |" in page.read_text()


def test_a_truth_that_was_changed_is_not_opened(command, tmp_path, capsys):
    command("--fix", "new")
    (tmp_path / "truth.json").write_text(json.dumps([{**TRUTH[0], "lines": [1]}, *TRUTH[1:]]))
    assert command("--open", "2026-12-01") == 1
    assert "not as they were when their truth was fixed: new/copies" in capsys.readouterr().out
    assert read_sets(tmp_path / "manifest.json", tmp_path / "hashes.json")[0].part == "sealed"
    assert "first_answer" not in (tmp_path / "truth.json").read_text()


def test_answers_to_a_sealed_set_have_to_be_kept_and_are_opened_as_a_whole(command, capsys):
    command("--fix", "new")
    with pytest.raises(SystemExit, match="--keep"):
        command("--part", "sealed")
    with pytest.raises(SystemExit):
        command("--open", "2026-12-01", "--only", "copies")
    assert "whole sets" in capsys.readouterr().err


def test_a_truth_that_is_open_or_shared_is_not_packed(command, tmp_path):
    command("--fix", "new")
    (source,) = json.loads((tmp_path / "manifest.json").read_text())
    hashes = json.loads((tmp_path / "hashes.json").read_text())
    (tmp_path / "hashes.json").write_text(json.dumps(hashes | {"other": {}}))
    (tmp_path / "manifest.json").write_text(json.dumps([source, {**source, "name": "other"}]))
    with pytest.raises(ValueError, match="other sets"):
        command("--seal", "new")
    (tmp_path / "manifest.json").write_text(json.dumps([{**source, "opened": "2026-12-01"}]))
    with pytest.raises(ValueError, match="was opened"):
        command("--seal", "new")
