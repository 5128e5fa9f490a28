"""Temporary folders of runs that were killed are removed at the next start; those of live ones are not."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from diagnose.trials.launch import (
    LOCK,
    MARKER,
    PREFIX,
    EndedBySignal,
    ended_by_signals,
    remove_leftovers,
    run_folder,
)

PATIENCE_S = 60
HOLDS = """
import os, pathlib, subprocess, sys, time
from diagnose.trials.launch import run_folder
with run_folder() as folder:
    left = subprocess.Popen(["sleep", "300"], env={"DIAGNOSE_TRIAL": f"{folder}/run-001", "PATH": os.environ["PATH"]})
    while b"DIAGNOSE_TRIAL" not in pathlib.Path(f"/proc/{left.pid}/environ").read_bytes():
        time.sleep(0.01)  # the new program's environment is in place some time after it was started
    print(folder, left.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def started(pid):
    """Return when the process of a number began, which another one that has it later did not; None for none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


@pytest.mark.skipif(sys.platform != "linux", reason="processes of a run are found by /proc")
def test_what_a_killed_run_has_left_goes_and_what_a_live_one_has_stays(temporary):
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        folder, pid = holder.stdout.readline().split()
        assert remove_leftovers() == 0
        assert Path(folder).is_dir()
        began = started(pid)
        assert began
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert remove_leftovers() == 1
    assert list(temporary.iterdir()) == []
    limit = time.monotonic() + PATIENCE_S
    while started(pid) == began and time.monotonic() < limit:
        time.sleep(0.02)
    assert started(pid) != began


def test_only_folders_with_our_marker_are_touched(temporary):
    for name, text in (("empty", None), ("others", b"mine"), ("half", MARKER[:5])):
        (temporary / f"{PREFIX}{name}").mkdir()
        if text is not None:
            (temporary / f"{PREFIX}{name}" / LOCK).write_bytes(text)
    target = temporary / "target"
    target.mkdir()
    (target / LOCK).write_bytes(MARKER)
    (temporary / f"{PREFIX}link").symlink_to(target)
    (temporary / f"{PREFIX}pipe").mkdir()
    os.mkfifo(temporary / f"{PREFIX}pipe" / LOCK)
    before = sorted(temporary.rglob("*"))
    assert remove_leftovers() == 0
    assert sorted(temporary.rglob("*")) == before


def test_the_folder_is_gone_after_the_block_whatever_lies_in_it(temporary):
    def interrupted():
        with run_folder() as folder:
            (folder / "deep" / "er").mkdir(parents=True)
            (folder / "deep").chmod(0o500)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_and_is_an_exit_code(number):
    def ended():
        with ended_by_signals():
            os.kill(os.getpid(), number)
            time.sleep(PATIENCE_S)

    before = signal.signal(number, signal.SIG_DFL)  # nohup ignores one of them
    try:
        with pytest.raises(EndedBySignal) as caught:
            ended()
        assert caught.value.exit_code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
