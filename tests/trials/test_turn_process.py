"""Real processes that take turns: exactly one works at a time, with all that it has started, and none is left."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from diagnose.errors import CaptureError
from diagnose.trials.launch import Launch
from diagnose.trials.measuring import TrialRequest
from diagnose.trials.turn_process import TurnProcess, start_all
from diagnose.trials.turns import ScriptEndedError

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel's name for a peer, and /proc"),
    pytest.mark.slow,
    pytest.mark.timeout(150),
]

# Each step, and each turn of a process that the script starts in a group of its own, appends the time to a file.
SCRIPT = textwrap.dedent("""
    import os, subprocess, sys, time
    import torch

    name, num_steps = sys.argv[1], int(sys.argv[2])
    BUSY = "import sys, time\\nwhile True: print(time.monotonic_ns(), flush=True); time.sleep(0.002)"
    with open(f"{name}.worker", "w") as out:
        worker = subprocess.Popen([sys.executable, "-c", BUSY], stdout=out, start_new_session=True)
    steps = open(f"{name}.steps", "w")
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(num_steps):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.002)
        print(time.monotonic_ns(), file=steps, flush=True)
""")


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Return a function that starts the script's forms; whatever happens, they have ended afterwards."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    processes = {}

    def start(*num_steps):
        for i, num in enumerate(num_steps):
            processes[i] = process_of(tmp_path, i, num)
        return processes, start_all(processes)

    yield start
    for each in processes.values():
        each.kill()


def process_of(folder, i, num_steps):
    own = folder / f"run{i}"
    launch = Launch(["train.py", str(i), str(num_steps)], folder, own)
    return TurnProcess(launch, own, TrialRequest(str(own / "result.json")), own / "s")


def stamps(name):
    return [int(line) for line in Path(name).read_text().splitlines()]


def test_no_answer_is_waited_for_beyond_the_budget(started):
    processes, failed = started(100_000)
    assert not failed
    began = time.monotonic()
    processes[0].ends = began + 0.2
    with pytest.raises(CaptureError, match="The budget ended while it ran"):
        processes[0].block(60.0)
    assert time.monotonic() - began < 30


def test_one_works_at_a_time_with_all_it_has_started(started):
    processes, failed = started(100_000, 100_000)
    assert not failed
    ready, windows = time.monotonic_ns(), {0: [], 1: []}
    for number in (0, 1, 1, 0, 1, 0):
        began = time.monotonic_ns()
        steps = processes[number].block(0.05).step_ns
        windows[number].append((began, time.monotonic_ns()))
        assert steps
        assert all(ns > 2e6 for ns in steps)
    time.sleep(0.1)  # in which they would go on
    for number, own in windows.items():
        for what in ("steps", "worker"):
            late = [at for at in stamps(f"{number}.{what}") if at > ready]
            assert late
            assert all(any(began <= at <= ended for began, ended in own) for at in late)


def test_at_the_end_a_form_returns_what_every_trial_records(started):
    processes, _ = started(100_000)
    num = sum(len(processes[0].block(0.05).step_ns) for _ in range(3))
    result = processes[0].end()
    assert not result.failure
    assert len(result.step_ns) == num
    assert len(result.losses) > num  # with those of the warm-up and of dropped steps
    assert sum(processes[0].num_steps) == num


def test_a_script_that_ends_or_never_begins_says_so_and_the_other_goes_on(started):
    processes, failed = started(100_000, 60, 3)
    assert failed.keys() == {2}
    assert "ended after" in failed[2]
    with pytest.raises(ScriptEndedError):
        _ = [processes[1].block(0.05) for _ in range(50)]
    assert processes[0].block(0.05).step_ns


def test_a_process_that_is_killed_is_noticed(started):
    processes, _ = started(100_000)
    os.kill(processes[0]._pid, signal.SIGKILL)
    with pytest.raises(CaptureError, match="exit code -9"):
        processes[0].block(0.05)


def alive(folder):
    """Return how many processes carry the name of a folder in their environment."""
    found = 0
    for each in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += str(folder).encode() in each.read_bytes()
        except OSError:
            continue
    return found


@pytest.mark.parametrize("how", ["kill", "end"])
def test_nothing_is_left_of_what_is_stopped(started, tmp_path, how):
    processes, _ = started(100_000)
    assert alive(tmp_path / "run0") >= 2  # the script and what it has started
    getattr(processes[0], how)()
    assert alive(tmp_path / "run0") == 0


def test_nothing_is_left_when_this_process_is_killed(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    text = f"""
        import os, signal
        from pathlib import Path
        from diagnose.trials.turn_process import start_all
        from tests.trials.test_turn_process import process_of
        process = process_of(Path({str(tmp_path)!r}), 0, 100000)
        assert not start_all({{0: process}})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], cwd=tmp_path, env=env, check=False)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while alive(tmp_path / "run0") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(tmp_path / "run0") == 0
