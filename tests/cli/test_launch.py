"""The process apart: its exit code, its sentence, its signals. A few lines of Python stand in for it."""

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process import launch
from diagnose.capture.process.launch import CaptureRequest
from diagnose.cli.trace import ANALYSIS, import_analysis

HUNG_S = 300
REQUEST = CaptureRequest(CaptureOptions(output=Path("capture")), parent=os.getpid(), failure_file=-1, signal_file=-1)


def run(monkeypatch, program, *script, stdout_to_stderr=False):
    monkeypatch.setattr(launch, "BOOTSTRAP", program)
    return launch.supervise(REQUEST, script, stdout_to_stderr=stdout_to_stderr)


def test_the_exit_code_passes_through(monkeypatch):
    ended = run(monkeypatch, "import sys; sys.exit(len(sys.argv))", "train.py", "--epochs")
    assert (ended.returncode, ended.exit_code, ended.failure) == (4, 4, "")


def test_a_killed_process_ends_with_128_and_the_signal(monkeypatch):
    ended = run(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    assert (ended.returncode, ended.exit_code) == (-9, 137)


def test_the_child_hands_over_its_sentence(monkeypatch):
    program = (
        "import os, sys; from diagnose.capture.process.launch import CaptureRequest;"
        "request = CaptureRequest.decode(sys.argv[1]);"
        "os.write(request.failure_file, 'No step ‒ at all.'.encode()); sys.exit(5)"
    )
    ended = run(monkeypatch, program)
    assert (ended.exit_code, ended.failure) == (5, "No step ‒ at all.")


def test_an_order_survives_the_way():
    assert CaptureRequest.decode(REQUEST.encode()) == REQUEST


@pytest.mark.parametrize(("aside", "stream"), [(False, "out"), (True, "err")])
def test_standard_output_can_be_put_aside(monkeypatch, capfd, aside, stream):
    run(monkeypatch, "print('loss 1.0')", stdout_to_stderr=aside)
    assert getattr(capfd.readouterr(), stream) == "loss 1.0\n"


def test_a_signal_to_the_command_reaches_the_script(monkeypatch, tmp_path):
    ready = tmp_path / "ready"
    program = (
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9));"
        f"open({str(ready)!r}, 'w').close(); signal.pause()"
    )
    os.mkfifo(ready)

    def terminate():
        ready.open().close()  # waits for the script
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=terminate).start()
    assert run(monkeypatch, program).exit_code == 9
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_script_dies_with_a_command_that_is_killed(tmp_path):
    pid_file = tmp_path / "pid"
    os.mkfifo(pid_file)
    child = (
        "import os, signal, pathlib; from diagnose.capture.process.launch import _die_with_parent;"
        "_die_with_parent(os.getppid());"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); signal.pause()"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent])
    file = os.pidfd_open(int(pid_file.read_text()))  # reading waits for the child
    process.kill()
    process.wait()
    gone = select.select([file], [], [], HUNG_S)[0]
    os.close(file)
    assert gone, "the child outlived the process that waited for it"


def test_what_is_imported_while_the_script_runs_is_there():
    import_analysis()
    assert set(ANALYSIS) <= sys.modules.keys()
