"""What can be read of processes from outside."""

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from diagnose.capture.process.process import busy_share
from diagnose.capture.record.script_config import ScriptConfig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture
def child():
    """Start a process that runs a line of Python, and say that it is under way."""
    started = []

    def start(line):
        process = subprocess.Popen([sys.executable, "-S", "-c", f"print(flush=True); import time; {line}"], stdout=-1)
        started.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_process_that_computes_and_one_that_waits(child):
    spins, sleeps = child("any(iter(int, 1))"), child("time.sleep(60)")
    time.sleep(1.0)
    assert busy_share([sleeps.pid]) < 0.2
    assert busy_share([spins.pid]) > busy_share([spins.pid, sleeps.pid]) > busy_share([sleeps.pid])


def test_of_a_process_that_is_gone_nothing_is_said(child):
    process = child("pass")
    process.wait()
    assert busy_share([process.pid]) is None
    assert busy_share([]) is None


def test_the_loader_s_workers_are_taken_down_while_they_live(child):
    class Iterator:
        _workers = (child("time.sleep(60)"),)

    config, dataset, iterator = ScriptConfig(), object(), Iterator()
    config.loader_opened(SimpleNamespace(num_workers=1), dataset)
    config.batch_delivered(dataset, iterator)
    config.settle()
    assert config.loader["num_workers"] == 1
    assert 0 <= config.loader["workers_busy"] < 0.9
