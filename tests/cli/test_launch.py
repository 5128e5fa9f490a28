"""The process apart: its exit code, its sentence, its signals. A few lines of Python stand in for it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process import launch
from diagnose.capture.process.child import Order

ORDER = Order(CaptureOptions(output=Path("capture")), parent=os.getpid(), failure_file=-1, signal_file=-1)


def run(monkeypatch, program, *script, stdout_to_stderr=False):
    monkeypatch.setattr(launch, "BOOTSTRAP", program)
    return launch.supervise(ORDER, script, stdout_to_stderr=stdout_to_stderr)


def test_the_exit_code_passes_through(monkeypatch):
    ended = run(monkeypatch, "import sys; sys.exit(len(sys.argv))", "train.py", "--epochs")
    assert (ended.returncode, ended.exit_code, ended.failure) == (4, 4, "")


def test_a_killed_process_ends_with_128_and_the_signal(monkeypatch):
    ended = run(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    assert (ended.returncode, ended.exit_code) == (-9, 137)


def test_the_child_hands_over_its_sentence(monkeypatch):
    program = (
        "import os, sys; from diagnose.capture.process.child import Order; order = Order.decode(sys.argv[1]);"
        "os.write(order.failure_file, 'No step ‒ at all.'.encode()); sys.exit(5)"
    )
    ended = run(monkeypatch, program)
    assert (ended.exit_code, ended.failure) == (5, "No step ‒ at all.")


def test_an_order_survives_the_way():
    assert Order.decode(ORDER.encode()) == ORDER


@pytest.mark.parametrize(("aside", "stream"), [(False, "out"), (True, "err")])
def test_standard_output_can_be_put_aside(monkeypatch, capfd, aside, stream):
    run(monkeypatch, "print('loss 1.0')", stdout_to_stderr=aside)
    assert getattr(capfd.readouterr(), stream) == "loss 1.0\n"


def test_a_signal_to_the_command_reaches_the_script(monkeypatch, tmp_path):
    ready = tmp_path / "ready"
    program = (
        "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9));"
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(30)"
    )

    def terminate():
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=terminate).start()
    assert run(monkeypatch, program).exit_code == 9
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_script_dies_with_a_command_that_is_killed(tmp_path):
    pid_file = tmp_path / "pid"
    child = (
        "import os, time, pathlib; from diagnose.capture.process.child import _die_with_parent;"
        "_die_with_parent(os.getppid());"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(30)"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent])
    while not (pid_file.exists() and pid_file.read_text()):
        time.sleep(0.01)
    process.kill()
    process.wait()
    stat = Path(f"/proc/{pid_file.read_text()}/stat")
    for _ in range(500):
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.01)
    pytest.fail("the child outlived the process that waited for it")
