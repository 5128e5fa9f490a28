"""Disks that are full, places that cannot be written, two captures in one place: whole or not at all, and said."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.slow]

STEP_US = 1000.0
ONE_SENTENCE = 1
SMALL = ("--skip", "2", "--steps", "4")


def small_trace():
    events = []
    for step in range(4):
        at = step * STEP_US
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1}
        events.append({**mark, "ts": at, "dur": STEP_US})
        op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": at + 10, "dur": 900.0}
        events.append({**op, "args": {}})
    return json.dumps({"schemaVersion": 1, "traceEvents": events})


def fill(folder, *, leave):
    """Fill a file system, all but some bytes."""
    free = os.statvfs(folder)
    (folder / "full").write_bytes(b"x" * max(0, free.f_bavail * free.f_frsize - leave))


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("kind", "report"),
    [
        ("full", "r.html"),
        ("read-only", "r.json"),
        *(
            pytest.param(kind, report, marks=pytest.mark.full)
            for kind, report in [("read-only", "r.html"), ("full", "r.json"), ("full", "r.txt"), ("read-only", "r.txt")]
        ),
    ],
)
def test_a_report_that_does_not_fit_is_one_sentence_and_leaves_nothing(faulty, mounted, kind, report):
    (faulty.folder / "t.json").write_text(small_trace())
    place = mounted("size=64k" if kind == "full" else "size=64k,ro")
    if kind == "full":
        fill(place, leave=0)
    before = files_in(place)
    ended = faulty("analyze", "--quiet", "-o", place / report, "t.json")
    assert (ended.code, len(ended.sentences), ended.stderr.count("\n")) == (6, 1, 1), ended.stderr
    assert files_in(place) == before


def test_a_report_that_is_there_stays_when_the_new_one_does_not_fit(faulty, mounted):
    (faulty.folder / "t.json").write_text(small_trace())
    place = mounted("size=256k")
    (place / "r.html").write_text("yesterday's")
    fill(place, leave=8192)
    ended = faulty("analyze", "--quiet", "--force", "--html", place / "r.html", "t.json")
    assert (ended.code, len(ended.sentences)) == (6, 1), ended.stderr
    assert (place / "r.html").read_text() == "yesterday's"
    assert files_in(place) == ["full", "r.html"]


def test_outputs_of_a_gate_that_do_not_fit(faulty, mounted):
    (faulty.folder / "t.json").write_text(small_trace())
    place = mounted("size=64k,ro")
    ended = faulty("gate", "--quiet", "--junit", place / "j.xml", "t.json", "t.json")
    assert (ended.code, len(ended.sentences)) == (6, 1), ended.stderr


@pytest.mark.parametrize("form", [["--json"], []])
def test_standard_output_on_a_full_disk_is_no_success(faulty, form):
    (faulty.folder / "t.json").write_text(small_trace())
    with Path("/dev/full").open("w") as full:
        ended = faulty("analyze", "--quiet", *form, "t.json", stdout=full)
    assert ended.code == 6, ended.stderr
    assert (len(ended.sentences), "Traceback" in ended.stderr) == (1, False), ended.stderr


def test_a_capture_on_a_full_disk(faulty, mounted):
    faulty.script(faulty.loop())
    place = mounted("size=64k")
    fill(place, leave=16_384)
    ended = faulty(
        "trace", "--json", "--quiet", "--skip", "2", "--steps", "4", "--capture", place / "capture", "train.py"
    )
    assert ended.code in (5, 6), ended.stderr
    assert len(ended.sentences) == ONE_SENTENCE
    assert "Traceback" not in ended.stderr
    assert ended.left == []
    assert not (place / "capture").exists() or (place / "capture" / "capture.json").is_file()
    (place / "full").unlink()
    assert [name for name in files_in(place) if "partial" in name] == [], "nothing half written takes the space"


def test_runs_that_are_kept_on_a_full_disk(faulty, mounted):
    faulty.script("import torch")
    place = mounted("size=64k")
    fill(place, leave=0)
    ended = faulty("prove", "--yes", "--quiet", "--keep-runs", place / "kept", "train.py")
    assert ended.code in (5, 6), ended.stderr
    assert (len(ended.sentences), "Traceback" in ended.stderr) == (ONE_SENTENCE, False), ended.stderr
    assert "No space left on device" in ended.sentences[0]


def test_a_read_only_place_is_refused_before_the_script_runs(faulty, mounted):
    faulty.script("open('ran', 'w')")
    place = mounted("size=64k,ro")
    for option in (("--capture", place / "capture"), ("--capture", "capture", "--html", place / "r.html")):
        ended = faulty("trace", "--quiet", *option, "train.py")
        assert (ended.code, len(ended.sentences)) == (6, 1), ended.stderr
    assert files_in(faulty.folder) == ["mount0", "train.py"]


@pytest.mark.full
def test_runs_that_do_not_fit_where_they_are_kept(faulty, mounted):
    faulty.script(faulty.loop())
    place = mounted("size=64k")
    fill(place, leave=4096)
    ended = faulty("prove", "--yes", "--quiet", "--budget", "1s", "--keep-runs", place / "kept", "train.py")
    assert ended.code in (5, 6), ended.stderr
    assert len(ended.sentences) == ONE_SENTENCE
    assert "Traceback" not in ended.stderr
    assert ended.left == []
    assert files_in(faulty.folder) == [
        "mount0",
        "mount0/full",
        *[n for n in files_in(faulty.folder) if "kept" in n],
        "train.py",
    ]


@pytest.mark.full  # every day: tests/capture/test_folder.py, without the command around it
def test_two_captures_into_one_folder(faulty):
    """The second one is refused before its script runs, and the first one arrives whole."""
    os.mkfifo(faulty.folder / "gate")
    faulty.script(faulty.loop(before="open('gate').read()"))
    where = ("trace", "--json", "--quiet", *SMALL, "--capture", "capture", "train.py")
    first = faulty.start(*where)
    with (faulty.folder / "gate").open("w"):  # waits for the script
        second = subprocess.run(
            [sys.executable, "-m", "diagnose", *where], cwd=faulty.folder, check=False, capture_output=True, text=True
        )
    assert second.returncode == 6, second.stderr
    assert second.stderr.count("\n") == ONE_SENTENCE
    ended = faulty.ended(first)
    assert (ended.code, ended.left) == (0, []), ended.stderr
    assert json.loads(ended.stdout)["steps"] >= 1


def test_a_folder_that_is_taken_stays_as_it_is(faulty):
    faulty.script("open('ran', 'w')")
    (faulty.folder / "capture").mkdir()
    (faulty.folder / "capture" / "notes.txt").write_text("mine")
    ended = faulty("trace", "--quiet", "--capture", "capture", "train.py")
    assert (ended.code, len(ended.sentences)) == (6, 1)
    assert files_in(faulty.folder) == ["capture", "capture/notes.txt", "train.py"]


@pytest.mark.full
def test_force_removes_captures_and_nothing_else(faulty):
    (faulty.folder / "capture").mkdir()
    (faulty.folder / "capture" / "notes.txt").write_text("mine")
    (faulty.folder / "capture" / "capture.json").write_text("{}")
    faulty.script(faulty.loop())
    ended = faulty.trace("--force")
    assert ended.code == 0, ended.stderr
    assert (faulty.folder / "capture" / "notes.txt").read_text() == "mine"
    assert ended.info is not None
    assert ended.info["ended"] == "stopped"


def test_the_check_of_mounts_can_fail(mounted):
    place = mounted("size=64k,ro")
    done = subprocess.run(["touch", str(place / "x")], check=False, capture_output=True)
    assert done.returncode != 0
