"""One run of a script that misbehaves: what is said of it, and that nothing of it is left."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diagnose.errors import CaptureError
from diagnose.progress import Progress
from diagnose.proof import runs
from diagnose.proof.recording import record
from diagnose.proof.runs import Command, Runner

PATIENCE_S = 20


@pytest.fixture
def runner(tmp_path):
    """Return a function that makes a runner for the text of a script."""

    def make(text):
        (tmp_path / "project").mkdir()
        (tmp_path / "project" / "train.py").write_text(text)
        return Runner(Command(("train.py",), tmp_path / "project"), tmp_path / "runs")

    return make


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(true):
    limit = time.monotonic() + PATIENCE_S
    while not true() and time.monotonic() < limit:
        time.sleep(0.02)
    return true()


def over_once(monkeypatch, ready):
    """Let the time of a run be over once something is so, however fast the machine is."""
    wait = subprocess.Popen.wait

    def waiting(self, timeout=None):
        if timeout != 61.0:
            return wait(self, timeout)
        wait_until(ready)
        raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", waiting)


HANGS = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
own = [subprocess.Popen(["sleep", "300"], start_new_session=new).pid for new in (False, True)]
open({pids!r}, "w").write(" ".join(map(str, own)))
print("waiting for a file that never comes", flush=True)
time.sleep(300)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes that left their group are found by /proc")
def test_a_run_that_hangs_is_killed_with_all_that_it_started(runner, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "GRACE_S", 0.2)
    pids = tmp_path / "pids"
    found = runner(HANGS.format(pids=str(pids)))
    over_once(monkeypatch, lambda: "never comes" in found.last_log.read_text())
    run = found.time(("sham",), timeout_s=61.0)
    assert run.failure == (
        "It had not ended after 61 s and was killed (its last line: waiting for a file that never comes)."
    )
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids.read_text().split()))


def test_what_a_run_leaves_behind_ends_with_it(runner, tmp_path):
    pid = tmp_path / "pid"
    starts = "import subprocess; own = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
    runner(f"{starts}open({str(pid)!r}, 'w').write(str(own.pid))").time((), timeout_s=60)
    assert wait_until(lambda: not is_alive(pid.read_text()))


def test_megabytes_of_output_keep_their_end(runner):
    found = runner("for i in range(3000): print('x' * 1000)\nprint('the end')")
    found.time((), timeout_s=60)
    kept = found.last_log.read_text()
    assert len(kept) < 1.1e6
    assert kept.startswith("[the beginning was cut off]")
    assert kept.endswith("the end\n")


def test_a_script_that_asks_for_input_gets_none_and_is_told_so(runner, tmp_path, capfd):
    found = runner("name = input('run name? ')")
    with pytest.raises(CaptureError, match=r"raised EOFError.*standard input is empty.*arguments"):
        record(found, (), tmp_path / "capture", 60, Progress(quiet=True))
    assert "EOFError: EOF when reading a line" in capfd.readouterr().err


def test_a_script_that_never_steps_says_so(runner, tmp_path):
    with pytest.raises(CaptureError, match="never imported torch"):
        record(runner("x = 1"), (), tmp_path / "capture", 60, Progress(quiet=True))


def test_a_script_that_ends_itself_says_its_last_line(runner):
    run = runner("import os; print('out of luck', flush=True); os._exit(9)").time((), timeout_s=60)
    assert run.failure == "It ended with exit code 9 before anything was measured (its last line: out of luck)."


def test_the_users_settings_stay(runner, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    found = runner("import os; print(os.environ['PYTHONHASHSEED'], os.environ['PYTHONUNBUFFERED'])")
    found.time((), timeout_s=60)
    assert found.last_log.read_text().split() == ["7", "1"]
    assert "DIAGNOSE_TRIAL" not in os.environ


def test_a_change_that_compiles_leaves_the_users_compiler_cache_alone(runner, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "mine")
    found = runner("import os; print(os.environ['TORCHINDUCTOR_CACHE_DIR'])")
    seen = []
    for ids in ((), ("schedule-gc", "compile-model"), ("compile-model",)):
        found.time(ids, timeout_s=60)
        seen.append(found.last_log.read_text().strip())
    assert seen == ["mine", *[str(tmp_path / "runs" / "compiled")] * 2]
