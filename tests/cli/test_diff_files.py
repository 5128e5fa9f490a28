"""A traced script's diffs as files: the command that the report prints makes the change, and nothing is overwritten."""

import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.answer.screen import with_words
from diagnose.changes.common.call_edits import calls_in, diff_of, edited
from diagnose.changes.edits.source_edits import with_diffs
from diagnose.cli import trace
from diagnose.cli.output import Request, answer, with_diff_files
from diagnose.errors import OutputError
from diagnose.model.diagnosis import Prescription
from diagnose.reports.text import render
from tests.reports.forms import gaps

MS = 1_000_000
CODE = "def Any(*args, **values):\n    print(args, values)\n\n\nfor epoch in range(1):\n    Any(3)\n"
PAGE = Path("report.html")
QUIET = Request(quiet=True)


def prescribed(file, number=6):
    lines = CODE.split("\n")
    line = lines[number - 1]
    made = {
        "name": "Any", "file": file, "first": 3, "lines": lines[2:number + 1], "ends_file": True, "takes_any": True,
        "begin": [number, line.index("Any")], "end": [number, len(line)], "parameters": ["first", "fused"],
    }  # fmt: skip
    diff = diff_of([edited(one, {"fused": True}) for one in calls_in({"made": made}, ("Any",))])
    return Prescription("data-stall", "fuse", "Fuse", "", "", (0.0, 5 * MS), 15 * MS, "same numbers", diff=diff)


@pytest.fixture
def diagnosed(tmp_path, monkeypatch):
    """Give the diagnosis of a script in a folder below the working folder."""
    folder = tmp_path / "work"
    (folder / "a folder").mkdir(parents=True)
    (folder / "a folder" / "train.py").write_text(CODE)
    monkeypatch.chdir(folder)
    return with_words(replace(gaps(), prescriptions=(prescribed("a folder/train.py"),), waterfall=None))


@pytest.mark.parametrize(
    ("folder", "page"),
    [
        ("runs/new/one", "runs/new/one-report.html"),
        ("one", "one-report.html"),
        ("./one/", "one-report.html"),
        (".", "work-report.html"),
    ],
)
def test_report_and_diffs_lie_next_to_the_capture_that_was_named(diagnosed, monkeypatch, capsys, folder, page):
    monkeypatch.setattr(trace, "_run", lambda *_: (0, Path(folder)))
    monkeypatch.setattr(trace, "_diagnosed", lambda *_: diagnosed)
    request = trace.TraceRequest(script="a folder/train.py", quiet=True, folder=folder, force=True)
    assert trace.trace_and_answer(request) == 0
    assert [str(file) for file in Path().rglob("*.html")] == [page]
    (diff,) = Path().rglob("*.diff")
    assert diff == Path(page).with_suffix(".change-1.fuse.diff")
    assert f"$ git apply {diff}" in capsys.readouterr().out


@pytest.mark.parametrize("in_repository", [False, True])
def test_the_printed_command_makes_the_change(diagnosed, tmp_path, in_repository):
    if in_repository:  # of which the working folder is a part
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    shown = render(with_diff_files(diagnosed, PAGE, QUIET), width=100)
    (command,) = (line.partition("$ ")[2] for line in shown.splitlines() if "$ git apply" in line)
    subprocess.run(shlex.split(command), check=True)
    done = subprocess.run([sys.executable, "a folder/train.py"], capture_output=True, text=True, check=True)
    assert done.stdout == "(3,) {'fused': True}\n"
    assert "an excerpt; git apply report.change-1.fuse.diff makes the change" in shown


def test_a_trace_writes_it_beside_its_report(diagnosed, monkeypatch, capsys):
    monkeypatch.setattr(trace, "_run", lambda *_: (0, Path("capture")))
    monkeypatch.setattr(trace, "_diagnosed", lambda *_: diagnosed)
    request = trace.TraceRequest(script="a folder/train.py", quiet=True)
    assert trace.trace_and_answer(request) == 0
    (page,) = Path().glob("diagnose-report-*.html")
    (file,) = Path().glob("*.diff")
    assert file.name == f"{page.stem}.change-1.fuse.diff"
    assert f"$ git apply {file}" in capsys.readouterr().out
    assert trace.trace_and_answer(replace(request, output="report.json")) == 0
    assert list(Path().glob("*.diff")) == [file]  # without a page there is none


def test_the_diff_of_an_alternative_is_a_file_that_is_not_taken_for_the_first_change(diagnosed, capsys):
    other = replace(diagnosed.prescriptions[0], id="other", title="Do other", saves_ns=(0.0, 1.0 * MS))
    both = with_diff_files(replace(diagnosed, prescriptions=(*diagnosed.prescriptions, other)), PAGE, Request())
    files = ["report.change-1.fuse.diff", "report.further.other.diff"]
    assert [p.apply_with for p in both.prescriptions] == [f"git apply {file}" for file in files]
    assert Path(files[1]).read_text() == other.diff
    assert capsys.readouterr().err.splitlines() == [
        "diagnose: wrote report.change-1.fuse.diff: change 1, Fuse",
        "diagnose: wrote report.further.other.diff: a further change, which is not on the first screen, Do other",
    ]


def test_a_file_that_exists_stays_as_it_is(diagnosed):
    file = Path("report.change-1.fuse.diff")
    file.write_text("mine")
    (left,) = with_diff_files(diagnosed, PAGE, QUIET).prescriptions
    assert (file.read_text(), left.apply_with) == ("mine", "")
    (made,) = with_diff_files(diagnosed, PAGE, replace(QUIET, force=True)).prescriptions
    assert (file.read_text(), made.apply_with) == (made.diff, "git apply report.change-1.fuse.diff")


@pytest.mark.parametrize("after", [CODE.replace("epoch", "i"), CODE.replace("\n", "\r\n"), None])
def test_a_diff_that_does_not_apply_here_is_not_written(diagnosed, after):
    script = Path("a folder/train.py")
    script.unlink() if after is None else script.write_bytes(after.encode())
    (left,) = with_diff_files(with_diffs(diagnosed, None), PAGE, QUIET).prescriptions
    assert left.diff == left.apply_with == ""
    assert not Path("report.change-1.fuse.diff").exists()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "-o report.html writes the whole diff"),
        (("report.txt",), "-o report.html writes the whole diff"),
        (("report.txt", "report.json"), "report.json has the whole diff"),
        (("report.html",), "git apply report.change-1.fuse.diff makes the change"),
        (("missing/report.html",), "-o report.html writes the whole diff"),
    ],
)
def test_the_excerpt_names_what_has_the_whole_diff(diagnosed, capsys, files, words):
    with suppress(OutputError):
        answer(diagnosed, QUIET, tuple(map(Path, files)))
    assert f"an excerpt; {words}" in capsys.readouterr().out
    assert all(diagnosed.prescriptions[0].diff.splitlines()[-1] in Path(f).read_text() for f in files if f in words)


def test_outside_of_a_command_the_excerpt_names_no_file(diagnosed):
    assert "an excerpt; an HTML or JSON report has the whole diff" in render(diagnosed, width=100)
