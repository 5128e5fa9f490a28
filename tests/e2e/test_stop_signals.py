"""Signals that stop a traced script: the exit code, what is printed, and that nothing of the script outlives it."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import diagnose

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")]

MARK = "DIAGNOSE_TEST_SIGNALS"
PACKAGE = str(Path(diagnose.__file__).parent)
DETACHED = (
    "import subprocess, sys; quiet = subprocess.DEVNULL; subprocess.Popen([sys.executable, '-S', '-c', 'input()'], "
    "stdout=quiet, stderr=quiet, start_new_session=True)"
)
HEAD = f"""
import os, subprocess, sys
DETACHED = {DETACHED!r}
"""
LOADING = (
    HEAD
    + """
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        return torch.ones(4)

loader = torch.utils.data.DataLoader(Data(), num_workers=2)
subprocess.run([sys.executable, "-S", "-c", DETACHED])  # what it starts outlives it
for number, batch in enumerate(loader):
    if number == 3:
        print("ready", flush=True)
    # no optimizer and no model: a step ends with its batch, and waiting takes all signals
"""
)
ENDING = (
    HEAD
    + """
subprocess.run([sys.executable, "-S", "-c", DETACHED])
print("ready", flush=True)
"""
)


@pytest.fixture
def traced(script, tmp_path):
    """Start ``diagnose trace`` in a process group of its own, up to the script's line ``ready``."""
    started = []
    read, write = os.pipe()  # what the detached process waits for: its end ends with the test

    def start(text, *options):
        script(text)
        process = subprocess.Popen(
            [sys.executable, "-m", "diagnose", "trace", "--quiet", *options, "train.py"],
            cwd=tmp_path,
            stdin=read,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, MARK: str(tmp_path), "OMP_NUM_THREADS": "1"},
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        return process

    yield start
    os.close(write)
    os.close(read)
    for process in started:
        process.kill()
        process.communicate()


def running(tmp_path):
    """Return what still runs of what the test has started."""
    found, mark = [], f"{MARK}={tmp_path}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes())
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.full)])
def test_a_signal_to_the_group_ends_script_workers_and_detached_processes(traced, tmp_path, number):
    process = traced(LOADING, "--skip", "100000")
    os.killpg(process.pid, number)
    _, shown = process.communicate(timeout=300)
    assert process.returncode == 128 + number, shown
    # A worker's thread that hands over tensors complains by itself where the trainer ends while asking it for one, and
    # may be killed before it has written any frame. What the script or this package raised shows their frames.
    blocks = shown.split("Traceback")[1:]
    assert [block for block in blocks if PACKAGE in block or str(tmp_path) in block or "train.py" in block] == []
    assert running(tmp_path) == []


def test_what_a_script_that_ends_by_itself_leaves_running_is_left(traced, tmp_path):
    process = traced(ENDING)
    process.communicate(timeout=300)
    assert len(running(tmp_path)) == 1
