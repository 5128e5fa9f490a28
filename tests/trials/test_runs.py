"""One run of a script that misbehaves: what is said of it, and that nothing of it is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diagnose.errors import CaptureError, OriginalsChangedError
from diagnose.text.progress import Progress
from diagnose.trials import limits
from diagnose.trials.candidates import Candidate
from diagnose.trials.copying import CopyLimits, below, plan_copy
from diagnose.trials.in_sequence import Schedule
from diagnose.trials.launch import read_result
from diagnose.trials.measuring import TrialResult
from diagnose.trials.prove import prove
from diagnose.trials.runs import Command, Runner, record

PATIENCE_S = 60


@pytest.fixture
def runner(tmp_path):
    """Return a function that makes a runner for the text of a script."""

    def make(text):
        (tmp_path / "project").mkdir()
        (tmp_path / "runs").mkdir()
        (tmp_path / "project" / "train.py").write_text(text)
        return Runner(Command(("train.py",), tmp_path / "project"), tmp_path / "runs")

    return make


@pytest.fixture
def unrestricted(monkeypatch):
    """Be on a system that cannot take the right to write from a run."""
    monkeypatch.setattr(limits, "can_restrict", lambda: False)


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
    pids = tmp_path / "runs" / "pids"
    found = runner(HANGS.format(pids=str(pids)))
    found.grace_s = 0.2
    over_once(monkeypatch, lambda: "never comes" in found.last_log.read_text())
    run = found.time(("sham",), timeout_s=61.0)
    assert run.failure == (
        "It had not ended after 61 s and was killed (its last line: waiting for a file that never comes)."
    )
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids.read_text().split()))


def test_what_a_run_leaves_behind_ends_with_it(runner, tmp_path):
    pid = tmp_path / "runs" / "pid"
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


def test_a_script_that_asks_for_input_gets_none_and_is_told_so(runner, capfd):
    found = runner("name = input('run name? ')")
    with pytest.raises(CaptureError, match=r"raised EOFError.*standard input is empty.*arguments"):
        record(found, (), found.folder / "capture", 60, Progress(quiet=True))
    assert "EOFError: EOF when reading a line" in capfd.readouterr().err


def test_a_script_that_never_steps_says_so(runner):
    found = runner("x = 1")
    with pytest.raises(CaptureError, match="never imported torch"):
        record(found, (), found.folder / "capture", 60, Progress(quiet=True))


def test_a_script_that_ends_itself_says_its_last_line(runner):
    run = runner("import os; print('out of luck', flush=True); os._exit(9)").time((), timeout_s=60)
    assert run.failure == "It ended with exit code 9 before anything was measured (its last line: out of luck)."


def test_the_users_settings_stay(runner, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    found = runner("import os; print(os.environ['PYTHONHASHSEED'], os.environ['PYTHONUNBUFFERED'])")
    found.time((), timeout_s=60)
    assert found.last_log.read_text().split() == ["7", "1"]
    assert "DIAGNOSE_TRIAL" not in os.environ


def test_a_change_that_compiles_in_the_folder_itself_leaves_the_users_compiler_cache_alone(
    runner, tmp_path, monkeypatch
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "mine")
    found = runner("import os; print(os.environ['TORCHINDUCTOR_CACHE_DIR'])")
    found.cwd_mode = "same"
    seen = []
    for ids in ((), ("schedule-gc", "compile-model"), ("compile-model",)):
        found.time(ids, timeout_s=60)
        seen.append(found.last_log.read_text().strip())
    assert seen == ["mine", *[str(tmp_path / "runs" / "compiled")] * 2]


HARMS = """
import os
for name in ("weights.bin", "log.txt"):
    with open(name, "r+b") as file: file.write(b"changed")
    with open(name, "ab") as file: file.write(b"appended")
    os.truncate(name, 3)
    os.rename(name, name + ".old")
    open(name, "w").write("new")
    os.remove(name + ".old")
    open(f"data/{name}", "wb").write(b"written through a link")
os.remove("note.txt")
open(os.path.join(os.path.dirname(__file__), "beside.txt"), "w").write("new")
"""


def test_a_script_that_writes_removes_and_renames_reaches_no_original(runner, tmp_path):
    found = runner(HARMS)
    said = []
    found.report = said.append
    project, data = tmp_path / "project", tmp_path / "data"
    data.mkdir()
    (project / "data").symlink_to("../data")
    for path in (project / "note.txt", *(folder / name for folder in (project, data) for name in FILES)):
        path.write_bytes(b"0" * FILES.get(path.name, 9))
    for _ in range(2):
        found.time((), timeout_s=60)
        assert "Traceback" not in found.last_log.read_text()
    assert {path.read_bytes() for path in (project / "note.txt", *project.glob("*.bin"), *data.iterdir())} == {
        b"0" * size for size in (9, *FILES.values())
    }
    assert [text for text in said if not text.startswith("backed up ")] == []
    assert not (project / "beside.txt").exists()
    assert found.changed == ""
    found.close()
    assert not list(tmp_path.glob("runs/cwd"))


FILES = {"weights.bin": 20_000_000, "log.txt": 100}


def test_torch_saves_a_large_checkpoint_into_the_copy(runner, tmp_path):
    found = runner("import torch\ntorch.save(torch.ones(5_000_000), 'checkpoint.pt')\nprint('saved')")
    (tmp_path / "project" / "checkpoint.pt").write_bytes(b"0" * 17_000_000)
    found.time((), timeout_s=60)
    assert "saved" in found.last_log.read_text()
    assert (tmp_path / "project" / "checkpoint.pt").read_bytes() == b"0" * 17_000_000


@pytest.mark.usefixtures("unrestricted")
def test_a_write_through_a_link_to_large_data_is_noticed_and_no_run_follows(runner, tmp_path):
    found = runner("open('data/x.bin', 'ab').write(b'more')")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.bin").write_bytes(b"0" * 100)
    (tmp_path / "project" / "data").symlink_to("../data")
    found.plan = plan_copy(tmp_path / "project", limits=CopyLimits(linked_folder_bytes=10))
    found.time((), timeout_s=60)
    assert found.changed.startswith(f"{tmp_path}/data/x.bin was changed while the trials ran, so no further one")
    with pytest.raises(OriginalsChangedError, match=r"x\.bin was changed"):
        found.time((), timeout_s=60)
    assert found.num_runs == 1


@pytest.mark.usefixtures("unrestricted")
def test_what_a_script_overwrites_by_its_full_name_is_saved(runner, tmp_path):
    found = runner(f"import pathlib; pathlib.Path({str(tmp_path)!r}, 'project', 'best.pt').write_text('worse')")
    (tmp_path / "project" / "best.pt").write_text("best")
    found.time((), timeout_s=60)
    found.close()
    (saved,) = tmp_path.glob("state/diagnose/saved-*")
    assert "project/best.pt was changed while the trials ran" in found.changed
    assert f"What was there before is in {saved}." in found.changed
    assert below(saved, tmp_path / "project" / "best.pt").read_text() == "best"


def test_trials_that_are_stopped_keep_what_was_measured():
    class Stops:
        warm_up = timed = 0
        schedule = Schedule()
        turns = None

        def time(self, ids, *, timeout_s):
            if ids == ("schedule-gc",):
                raise OriginalsChangedError("x was changed.")
            return TrialResult((10e6, 10.1e6, 10.2e6) * 5, (1.0,) * 9, applied=ids, wall_s=1.0)

    chosen = [Candidate("sham", "Sham"), Candidate("schedule-gc", "Collect")]
    result = prove(Stops(), chosen, 1e6, lambda _text: None)
    assert [trial.id for trial in result.trials] == ["sham"]
    assert result.notes == ["x was changed."]


def test_a_result_that_is_broken_is_a_failed_run(tmp_path):
    path = tmp_path / "result.json"
    whys = []
    for text in ('{"step_ns": [1', '{"step_ns": 7}', "[" * 100_000):
        path.write_text(text)
        whys.append(read_result(tmp_path, 3, 60.0, " (its last line: x)"))
    os.truncate(path, 1 << 40)
    whys.append(read_result(tmp_path, 3, 60.0, ""))
    path.unlink()
    os.mkfifo(path)
    whys.append(read_result(tmp_path, 3, 60.0, ""))
    assert {run.step_ns for run in whys} == {()}
    assert whys[0].failure.startswith("It ended with exit code 3 and left a result that cannot be used: Expecting")
    assert whys[1].failure.endswith("used: its step_ns is not what a run measures (its last line: x).")
    assert "recursion" in whys[2].failure
    assert [run.failure.partition("used: ")[2] for run in whys[3:]] == [
        "it has 1099512 MB.",
        "it is not a regular file.",
    ]


LOOPS = """
import os, subprocess, time
own = [subprocess.Popen(["sleep", "300"], start_new_session=True, env=env).pid for env in (None, {})]
open(PIDS, "w").write(" ".join(map(str, [os.getpid(), os.getppid(), *own])) + " .")
time.sleep(300)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes that left their group are found by /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_prove_that_is_killed_leaves_no_process_and_no_folder(tmp_path, number):
    project, temporary, cache = (tmp_path / name for name in ("project", "tmp", "cache"))
    for folder in (project, temporary, cache):
        folder.mkdir()
    pids = cache / "pids"
    (project / "train.py").write_text(LOOPS.replace("PIDS", repr(str(pids))))
    command = [sys.executable, "-m", "diagnose", "prove", "--yes", "--writable", str(cache), "train.py"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, cwd=project, env=environment, stderr=subprocess.PIPE, text=True) as proving:
        assert wait_until(lambda: pids.exists() and pids.read_text().endswith("."))
        proving.send_signal(number)
        assert proving.wait(PATIENCE_S) == (143 if number == signal.SIGTERM else -9)
        said = proving.stderr.read()
    assert "Traceback" not in said
    assert "error" not in said
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids.read_text().split()[:-1]))
    assert wait_until(lambda: list(temporary.iterdir()) == [])


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at the end of a parent is Linux's")
def test_a_run_ends_when_its_guard_is_killed(runner, tmp_path):
    pids = tmp_path / "runs" / "pids"
    loops = LOOPS.replace("PIDS", repr(str(pids))).replace("time.sleep", "os.kill(os.getppid(), 9); time.sleep")
    run = runner(loops).time((), timeout_s=60)
    assert "exit code -9" in run.failure
    script, _guard, own, _without_environment, _ = pids.read_text().split()
    assert wait_until(lambda: not is_alive(script) and not is_alive(own))
    if is_alive(_without_environment):
        os.kill(int(_without_environment), signal.SIGKILL)
