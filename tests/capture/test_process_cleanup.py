"""Every process of a run is ended, also one that left its group; the run is known by a variable of the environment."""

import os
import signal
import subprocess
import sys

import pytest

from diagnose.capture.process.process import end_marked, kill_marked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
VARIABLE = "DIAGNOSE_TEST_OF_CLEANUP"


@pytest.fixture
def started():
    """Start a process of its own session that waits, with a value of the variable; it is under way when returned."""
    processes = []

    def start(value, line="pass"):
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", f"import signal; {line}; print(flush=True); signal.pause()"],
            env={**os.environ, VARIABLE: value},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        processes.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_the_processes_of_one_run_are_ended_and_no_others(started):
    mine, other = started("run-1"), started("run-2")
    end_marked(VARIABLE, "run-1", grace_s=30)
    assert mine.wait(60) == -signal.SIGTERM
    assert other.poll() is None


def test_what_ignores_the_request_is_killed(started):
    stubborn = started("run-1", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    end_marked(VARIABLE, "run-1", grace_s=0.0)
    assert stubborn.wait(60) == -signal.SIGKILL


def test_a_folder_names_the_runs_in_it_as_well(started, tmp_path):
    inside, beside = started(f"{tmp_path}/run-1"), started(f"{tmp_path}-other")
    kill_marked(VARIABLE, tmp_path)
    assert inside.wait(60) == -signal.SIGKILL
    assert beside.poll() is None
