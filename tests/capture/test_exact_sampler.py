"""The sampler outside the process: what it sees of a thread, that nobody notices it, and what is done without it."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from diagnose.capture.frames.layout import Addresses
from diagnose.capture.record import samplers as sampler_process
from diagnose.capture.record.samplers import Samplers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory of processes is read on Linux")

PERIOD_MS = 1.0
HUNG_S = 300  # far above what any wait here takes, so that a hang fails

numbers, small = list(range(60_000)), np.arange(20_000.0)
pattern = re.compile(r"(\w+) (\w+)")
words = "word " * 10_000


def loop():
    total = 0
    for i in range(50_000):
        total += i * i
    return total


def membership():
    return -1 in numbers


def substitution():
    return pattern.sub(r"\2 \1", words)


def seen_in(samplers):
    rows = samplers.in_windows.rows()
    return [tuple(rows["places"][row]) for row in rows["place"]]


def until(done):
    end = time.monotonic() + HUNG_S
    while not done():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.001)


def count(samplers):
    return len(samplers.in_windows.time_ns)


def in_a_window(samplers, work, enough=20):
    samplers.sample_window(on=True)
    end = time.monotonic() + HUNG_S
    while count(samplers) < enough:
        assert time.monotonic() < end, "no sample was taken"
        begun = time.monotonic()
        while time.monotonic() < begun + 0.02:
            work()
    samplers.sample_window(on=False)


@pytest.fixture
def samplers():
    """Return samplers that may take the time that so many samples need."""
    made = Samplers(PERIOD_MS, max_share=1.0)
    made.prepare()
    yield made
    made.stop()


def test_a_library_s_frames_are_seen_through_and_callers_kept(samplers):
    samplers.sample_run(on=True)
    until(lambda: substitution() and len(samplers.of_run.time_ns) >= 5)
    samplers.sample_run(on=False)
    paths = samplers.run_paths()["paths"]
    assert {path[0][0] for path in paths} == {__file__}
    name = test_a_library_s_frames_are_seen_through_and_callers_kept.__name__
    assert any([each[2] for each in path[:3]] == ["substitution", "<lambda>", "until"] for path in paths), paths
    assert any(name in [each[2] for each in path] for path in paths)


def states(samplers, function):
    running = samplers.in_windows.rows()["running"]
    return [runs for (_, _, name), runs in zip(seen_in(samplers), running, strict=True) if name == function]


def sleep():
    time.sleep(0.02)


def test_whether_the_thread_computes_or_waits(samplers):
    in_a_window(samplers, membership)
    computed = states(samplers, "membership")
    assert set(computed) == {1}
    in_a_window(samplers, sleep, enough=count(samplers) + 50)
    slept = states(samplers, "sleep")
    assert slept.count(0) > 0.5 * len(slept)


def test_stretches_add_up_and_nothing_is_counted_twice(samplers):
    counts = [0]
    for _ in range(2):
        in_a_window(samplers, membership, enough=counts[-1] + 10)
        counts.append(count(samplers))
    rows = samplers.in_windows.rows()
    assert counts[0] < counts[1] < counts[2] == len(rows["place"]) == len(rows["running"])
    assert rows["time_ns"] == sorted(set(rows["time_ns"]))
    assert len(rows["places"]) == len({tuple(place) for place in rows["places"]}) > max(rows["place"])
    summary = samplers.summary
    assert (summary["num_samples"], summary["fallback"]) == (counts[2], None)
    assert 0 < summary["cost_share"] < 1


def test_the_interpreter_s_switching_is_left_alone(samplers):
    before = sys.getswitchinterval()
    samplers.sample_window(on=True)
    during = sys.getswitchinterval(), [thread.name for thread in threading.enumerate()]
    samplers.sample_window(on=False)
    assert during[0] == before
    assert "diagnose-sampler" not in during[1]


# Scripts of their own: what a process does is seen from outside, and pytest has children of its own.
HEAD = """
import os, sys, time
from diagnose.capture.record.samplers import Samplers
samplers = Samplers(1.0)
files = set(os.listdir("/proc/self/fd"))
samplers.prepare()
samplers.sample_window(on=True)
"""
TAIL = """
samplers.sample_window(on=False)
samplers.stop()
print(samplers.summary["method"], samplers.summary["fallback"])
"""


def ran(body, *, tail=TAIL):
    command = [sys.executable, "-c", HEAD + body + tail]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HUNG_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_script_sees_no_child():
    body = """
import signal
print(signal.getsignal(signal.SIGCHLD))
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("none")
"""
    assert ran(body)[1:] == ["none", "memory None"]


def test_nothing_is_left_open_or_running():
    body = """
pid = samplers._process._pid
os.kill(pid, 0)
"""
    tail = f"""{TAIL}
print(sorted(set(os.listdir("/proc/self/fd")) - files))
while True:
    try:
        os.kill(pid, 0)
    except OSError:
        break
"""
    assert ran(body, tail=tail) == ["memory None", "[]"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_a_process_that_is_killed(number):
    """A process that was forked from it holds the other end of the socket open, so that its end alone shows nothing."""
    body = """
if not os.fork():
    time.sleep(600)
print(samplers._process._pid, flush=True)
time.sleep(600)
"""
    killed = subprocess.Popen([sys.executable, "-c", HEAD + body], stdout=subprocess.PIPE, start_new_session=True)
    pid = int(killed.stdout.readline())
    assert is_alive(pid)
    killed.send_signal(number)
    killed.wait()
    until(lambda: not is_alive(pid))
    os.killpg(killed.pid, signal.SIGKILL)
    killed.stdout.close()


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_it_holds_nothing_of_the_script_s_open(tmp_path):
    body = f"""
held, folder = {str(tmp_path / "held")!r}, f"/proc/{{samplers._process._pid}}"
names = [os.readlink(f"{{folder}}/fd/{{number}}") for number in os.listdir(f"{{folder}}/fd")]
print(names.count("/dev/null"), held in names, os.readlink(f"{{folder}}/cwd"))
"""
    command = [sys.executable, "-c", HEAD + body + TAIL]
    with Path(tmp_path / "held").open("wb") as held:
        given = [held.fileno()]
        done = subprocess.run(command, pass_fds=given, capture_output=True, text=True, check=True, timeout=HUNG_S)
    assert done.stdout.splitlines() == ["3 False /", "memory None"]


def test_a_script_that_closes_all_files_gets_nothing_written_into_its_own(tmp_path):
    body = f"""
os.closerange(3, 1000)
files = [open({str(tmp_path)!r} + f"/{{i}}", "wb") for i in range(20)]
"""
    assert ran(body) == ["memory The script closed its socket."]
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {0}
    assert len(list(tmp_path.iterdir())) == 20


def test_a_forked_process_is_not_sampled_and_does_not_speak_for_the_other():
    body = """
child = os.fork()
if not child:
    samplers.sample_window(on=False)
    samplers.sample_window(on=True)
    samplers.sample_window(on=False)
    print(samplers.summary["method"], samplers.summary["fallback"], flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    assert ran(body) == ["interpreter It samples another process.", "memory None"]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("_unfit", lambda: "Not on this system.", "Not on this system."),
        ("CODE", "import sys; sys.exit(1)", "It has ended."),
        ("addresses", lambda: Addresses(*[8] * 5), "Bad address"),
    ],
)
def test_without_it_a_thread_samples(monkeypatch, name, value, reason):
    monkeypatch.setattr(sampler_process, name, value)
    made = Samplers(PERIOD_MS)
    made.prepare()
    in_a_window(made, loop, enough=5)
    made.stop()
    assert (made.summary["method"], made.summary["fallback"]) == ("interpreter", reason)
    assert {place[0] for place in made.in_windows.rows()["places"]} == {__file__}


def test_a_line_that_it_does_not_see_is_no_sampler(monkeypatch):
    """The thread waits at another line than the one that must be seen, as with a layout that fits only nearly."""
    known = sampler_process._await_answer
    monkeypatch.setattr(sampler_process, "_await_answer", lambda channel: [known(channel)])
    made = Samplers(PERIOD_MS)
    in_a_window(made, loop, enough=5)
    made.stop()
    assert made.summary["method"] == "interpreter"
    assert made.summary["fallback"].startswith("It saw line")


def test_what_was_sampled_before_it_was_lost_is_kept(samplers):
    in_a_window(samplers, membership)
    before = count(samplers)
    samplers.sample_window(on=True)
    os.kill(samplers._process._pid, signal.SIGKILL)
    samplers.sample_window(on=False)
    assert count(samplers) == before
    in_a_window(samplers, loop, enough=before + 5)
    assert samplers.summary["method"] == "interpreter"
    assert samplers.summary["fallback"]


def test_an_interrupted_question_is_the_last(samplers, monkeypatch):
    samplers.sample_window(on=True)

    def interrupted(_channel):
        raise KeyboardInterrupt

    monkeypatch.setattr(sampler_process, "_await_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        samplers.sample_window(on=False)
    monkeypatch.undo()
    samplers.sample_window(on=False)
    assert "interrupted" in samplers.summary["fallback"]
