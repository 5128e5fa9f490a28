"""What is noticed when the user's own files change while trials run."""

import os
from pathlib import Path

import pytest

from diagnose.trials import originals
from diagnose.trials.originals import Changes, Originals


@pytest.fixture
def folder(tmp_path):
    found = tmp_path / "project"
    for name in ("data", ".git", "runs", "venv"):
        (found / name).mkdir(parents=True)
        (found / name / "x").write_bytes(b"x" * 100)
    return found


def test_what_changed_is_named_once_and_files_that_are_new_are_no_change(folder, tmp_path):
    watched = Originals([folder], without=[folder / "runs"])
    assert watched.look() == Changes({})
    for name in (".git/x", "runs/x", "venv/x", "data/new"):
        (folder / name).write_text("changed")
    assert watched.look() == Changes({}, (str(folder / "data/new"),))
    assert watched.look() == Changes({})
    (folder / "data" / "x").rename(tmp_path / "x")
    assert watched.look().text == f"{folder}/data/x is gone"


def test_a_change_of_the_same_size_and_time_is_seen(folder, monkeypatch):
    file = folder / "data" / "x"
    for hashed in (1 << 20, 0):
        monkeypatch.setattr(originals, "MAX_HASHED_BYTES", hashed)
        watched = Originals([folder])
        before = file.stat()
        file.write_bytes(bytes([hashed % 7]) * 100)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert watched.look().text == f"{file} was changed"


def test_the_same_content_written_anew_is_no_change(folder):
    watched = Originals([folder])
    (folder / "data" / "x").write_bytes(b"x" * 100)
    assert watched.look() == Changes({})


def test_what_links_lead_to_is_watched_up_to_a_number_of_entries_and_that_is_told(folder, tmp_path, monkeypatch):
    watched = Originals([], [folder / "data", tmp_path / "later"])
    (tmp_path / "later").touch()
    (folder / "data" / "x").write_text("")
    assert watched.look().text == (
        f"{folder}/data/x was changed; {tmp_path}/later was made, where a link had led nowhere"
    )
    monkeypatch.setattr(originals, "MAX_LINKED_ENTRIES", 2)
    assert Originals([], [folder]).unverified == [str(folder)]


@pytest.mark.parametrize("mark", ["pyvenv.cfg", "conda-meta"])
def test_an_environment_that_a_link_leads_to_is_not_looked_at(folder, monkeypatch, mark):
    (folder / mark).touch()
    monkeypatch.setattr(originals, "MAX_LINKED_ENTRIES", 1)
    watched = Originals([], [folder])
    assert watched.unverified == []
    (folder / "data" / "x").write_text("")
    assert watched.look() == Changes({})


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are found by /proc")
def test_a_log_that_another_process_still_writes_is_no_reason_to_stop(folder):
    with (folder / "prove.log").open("w") as log:
        watched = Originals([folder])
        log.write("one line more\n")
        log.flush()
        assert watched.look() == Changes({})


def test_a_pipe_is_not_opened(folder):
    os.mkfifo(folder / "pipe")
    watched = Originals([folder], [folder / "pipe"])
    assert watched.look() == Changes({})
