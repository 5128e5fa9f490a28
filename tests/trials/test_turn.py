"""A trial's process that waits for its turn: what it times, what it drops, and that it ends."""

import json
import socket
import threading
from types import SimpleNamespace

import pytest

from diagnose.trials import child, measuring
from diagnose.trials.child import FIRST_STEPS, Turns, TurnTimer, block_plan


@pytest.fixture
def clock(monkeypatch):
    """Return the clock of timers, which only a test moves."""
    now = SimpleNamespace(ns=0, queued_ns=0)
    for module in (measuring, child):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter_ns=lambda: now.ns))
    monkeypatch.setattr(measuring, "queued_ns", lambda: now.queued_ns)
    return now


@pytest.fixture
def parent(tmp_path, monkeypatch):
    """Return the parent's end, which asks for what a test tells it to, and has every answer."""
    monkeypatch.chdir(tmp_path)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("s")
    listening.listen(1)
    child = Turns("s")
    connection = listening.accept()[0]
    answers = connection.makefile("r")
    found = SimpleNamespace(
        child=child,
        ask=lambda text: connection.sendall(f"{text}\n".encode()),
        leave=lambda: connection.shutdown(socket.SHUT_RDWR),
        answer=lambda: json.loads(answers.readline() or "null"),
    )
    with listening, connection, answers:
        yield found
    child.close()


def steps_of(answer):
    """Return an answer without what others took."""
    return {name: value for name, value in answer.items() if name not in ("queued", "apart")}


def run(timer, clock, *, step_ns=20_000_000, most=10_000):
    """Step until the timer is done; return how many steps there were."""
    for num in range(1, most):
        clock.ns += step_ns
        timer.boundary()
        if timer.done:
            return num
    raise AssertionError("it is never done")


def test_a_block_has_at_least_one_step_and_one_that_is_dropped():
    assert block_plan(20e6, 0.15) == (1, 8)
    assert block_plan(2e6, 0.15) == (5, 75)  # of steps this short more are dropped
    assert block_plan(2e9, 0.15) == (1, 1)


def test_it_waits_for_each_block_and_answers_with_the_steps_in_it(parent, clock):
    begun = []
    for line in ("go 0.1", "go 0.06", "stop"):
        parent.ask(line)
    timer = TurnTimer(parent.child, 10, alone=False, timing_begins=lambda: begun.append(timer.num_steps))
    num = run(timer, clock)
    assert num == 10 + (1 + FIRST_STEPS) + (1 + 5) + (1 + 3)
    assert begun == [10 + 1 + FIRST_STEPS]
    assert parent.answer() == {"ready": True, "device_free": None}
    assert steps_of(parent.answer()) == {"steps": [20e6] * 5, "dropped": 1, "wall_ns": 120_000_000}
    assert steps_of(parent.answer()) == {"steps": [20e6] * 3, "dropped": 1, "wall_ns": 80_000_000}
    assert timer.step_ns() == (20e6,) * 8


def test_the_time_it_waited_is_no_step(parent, clock, monkeypatch):
    waits = iter([0.1, 0.1, None])

    def wait():
        clock.ns += 60_000_000_000
        return next(waits)

    monkeypatch.setattr(parent.child, "wait", wait)
    timer = TurnTimer(parent.child, 10, alone=False, timing_begins=lambda: None)
    run(timer, clock)
    assert set(timer.step_ns()) == {20e6}
    expected = {"steps": [20e6] * 5, "dropped": 1, "wall_ns": 120_000_000}
    assert [steps_of(parent.answer()) for _ in range(3)][1:] == [expected] * 2


def test_what_others_took_from_a_step_is_reported_with_it(parent, clock):
    parent.ask("go 0.1")
    parent.ask("stop")
    timer = TurnTimer(parent.child, 10, alone=False, timing_begins=lambda: None)
    while not timer.done:
        clock.queued_ns += 60_000_000
        clock.ns += 80_000_000
        timer.boundary()
    parent.answer()
    answer = parent.answer()
    assert (answer["steps"], answer["queued"]) == ([80e6], [60_000_000])


def test_a_block_whose_steps_have_become_longer_ends_early(parent, clock):
    parent.ask("go 0.2")
    parent.ask("stop")
    timer = TurnTimer(parent.child, 10, alone=False, timing_begins=lambda: None)
    for _ in range(10 + 1 + FIRST_STEPS):
        clock.ns += 20_000_000
        timer.boundary()
    run(timer, clock, step_ns=400_000_000)
    parent.answer()
    assert len(parent.answer()["steps"]) == 2  # and not ten


@pytest.mark.parametrize("when", ["before", "within"])
def test_it_ends_when_the_parent_has(parent, clock, when):
    parent.ask("go 0.1")
    if when == "before":
        parent.leave()
    timer = TurnTimer(parent.child, 10, alone=False, timing_begins=lambda: None)
    for _ in range(10 + 1 + FIRST_STEPS):
        clock.ns += 20_000_000
        timer.boundary()
    if when == "within":
        parent.leave()
    run(timer, clock, most=10)


def test_it_begins_when_it_may(parent):
    waiting = threading.Thread(target=parent.child.begin)
    waiting.start()
    assert parent.answer() == {"imported": True}
    assert waiting.is_alive()
    parent.ask("begin")
    waiting.join(30)
    assert not waiting.is_alive()


def test_on_a_device_steps_are_timed_in_its_queue_and_it_is_drained_once_a_block(parent, clock, monkeypatch):
    device = SimpleNamespace(queued_ns=0, waits=0)  # a queue that takes 30 ms a step, far behind the host

    class Event:
        def __init__(self, enable_timing):
            self.at = None

        def record(self):
            self.at = device.queued_ns

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return (other.at - self.at) / 1e6

    def synchronize():
        device.waits += 1

    device.Event, device.synchronize = Event, synchronize
    device.mem_get_info = lambda: (7, 9)
    for module in (measuring, child):
        monkeypatch.setattr(module, "used_cuda", lambda: device)
    for line in ("go 0.09", "go 0.09", "stop"):
        parent.ask(line)
    timer = TurnTimer(parent.child, 10, alone=False, timing_begins=lambda: None)
    while not timer.done:
        clock.ns += 1_000_000  # the host only launches
        device.queued_ns += 30_000_000
        timer.boundary()
    assert parent.answer() == {"ready": True, "device_free": 7}
    assert [parent.answer()["steps"] for _ in range(2)] == [[30e6] * 3] * 2
    assert device.waits == 3  # before the first block, and after each
