"""Takes turns in a trial's process: waits at a step boundary until it is asked for a block of steps, and times them.

Several forms of a script are alive at once and exactly one runs (`diagnose.trials.turns`). The parent listens on a unix
socket; each process connects to it and exchanges lines:

    {"imported": true}    from the process: torch is imported; several may import at once, but they warm up in turn
    begin                 from the parent
    {"ready": true, "device_free": bytes}    the warm-up is over, and the device has no work; null without a device
    go 0.15               a block of so many seconds
    {"steps": [ns, ...], "dropped": 1, "wall_ns": ns}    of the block; the device has no work
    stop                  the script is stopped, as in every trial

While it waits, the parent stops the process and its workers (SIGSTOP): workers would go on loading batches, and a block
would begin with more of them than the script has at that point of its step.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Generator
from math import ceil, inf
from statistics import median

from diagnose.trials.measuring import StepTimer, used_cuda

MAX_MESSAGE_BYTES = 8 << 20  # of one answer: a block of some tenths of a second holds some thousand steps at most
# The first steps of a block differ from the script's: caches hold what another process worked on, clocks and workers
# wake up, and the host has no lead over the device yet.
DROPPED_NS = 10e6
FIRST_STEPS = 4  # that show how many steps a first block has
MAX_OVERTIME = 3.0  # of a block, before it ends with fewer steps than planned: the steps have become longer


class Turns:
    """The process's end of the conversation; without the parent everything is over."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._lines = self._socket.makefile("r", encoding="utf-8")

    def begin(self) -> None:
        """Wait until this process may begin to work; torch has just been imported."""
        self._send({"imported": True})
        self._lines.readline()

    def ready(self) -> None:
        """Report that blocks can be asked for."""
        cuda = used_cuda()
        self._send({"ready": True, "device_free": None if cuda is None else int(cuda.mem_get_info()[0])})

    def answer(self, step_ns: list[float], dropped: int, wall_ns: int) -> None:
        """Report a block."""
        self._send({"steps": step_ns, "dropped": dropped, "wall_ns": wall_ns})

    def wait(self) -> float | None:
        """Wait for the next block; return its seconds, None if there is none."""
        words = self._lines.readline().split()
        return float(words[1]) if words[:1] == ["go"] else None

    def close(self) -> None:
        """End the conversation, also for workers, which have inherited the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._socket.close()

    def _send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # the parent has ended: the next wait returns at once
            self._socket.sendall(json.dumps(message).encode() + b"\n")


class TurnTimer(StepTimer):
    """Warms up as every trial does, then times steps in blocks until there are none to time.

    Nothing is sent, read or waited for within a block. On a GPU its steps are timed between events in the device's
    queue, as elsewhere: the host runs ahead of the device again after the dropped steps, so a block is no longer for
    the drains at both of its ends.
    """

    def __init__(self, turns: Turns, warm_up: int, *, alone: bool, timing_begins: Callable[[], None]) -> None:
        self._turns = turns
        super().__init__(warm_up, 0, alone=alone, timing_begins=timing_begins)

    def step_ns(self) -> tuple[float, ...]:
        """Return the steps of all blocks."""
        return tuple(self._done)

    def _script(self) -> Generator[None, int, None]:
        self._done: list[float] = []
        yield from self._settle()
        usual_ns = median((yield from self._steps(1, FIRST_STEPS, inf)))  # on a GPU the warm-up timed the host alone
        self._timing_begins()
        self._turns.ready()
        while (seconds := self._turns.wait()) is not None:
            dropped, num = block_plan(usual_ns, seconds)
            began = time.perf_counter_ns()
            steps = yield from self._steps(dropped, num, MAX_OVERTIME * seconds * 1e9)
            self._turns.answer(steps, dropped, time.perf_counter_ns() - began)
            usual_ns = median(steps)
            self._done += steps

    def _steps(self, dropped: int, num: int, limit_ns: float) -> Generator[None, int, list[float]]:
        """Drop some steps and time others; return these once the device has no work."""
        self._host, self._marks = [], []
        self._last = time.perf_counter_ns()
        for _ in range(dropped):
            yield
        timed_from = time.perf_counter_ns()
        self._mark()
        for _ in range(num):
            self._host.append((yield))
            self._mark()
            if self._last - timed_from > limit_ns:
                break
        if (cuda := used_cuda()) is not None:
            cuda.synchronize()
        return list(super().step_ns())


def block_plan(usual_ns: float, seconds: float) -> tuple[int, int]:
    """Return how many steps of a block are dropped, and how many are timed: at least one of each."""
    return max(1, ceil(DROPPED_NS / usual_ns)), max(1, round(seconds * 1e9 / usual_ns))
