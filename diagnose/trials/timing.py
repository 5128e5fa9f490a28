"""Times the steps of a script that runs without a profiler: wait until steady, time so many steps, stop."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from typing import Any

from diagnose.capture.process.process import compiled_graphs
from diagnose.capture.steps.step_source import converged_since

__all__ = ["StepTimer"]

PATIENCE = 4  # times the wanted warm-up: a script that has not settled by then is timed as it is
QUIET_STEPS = 3  # steps without a new compiled graph before timing begins


class StepTimer:
    """Times the steps between calls of ``boundary``; ``done`` once enough are timed.

    On a GPU the times are those between events in the device's queue, so that nothing waits for the device.
    """

    def __init__(self, warm_up: int, timed: int, *, alone: bool, timing_begins: Callable[[], None]) -> None:
        self.done = False
        self.converged = True
        self.num_steps = 0
        self.num_warm_up = 0
        self._host: list[int] = []
        self._marks: list[Any] = []
        self._warm_up, self._timed, self._alone = warm_up, timed, alone
        self._timing_begins = timing_begins
        self._last = time.perf_counter_ns()
        self._plan = self._script()
        next(self._plan)

    def restart(self) -> None:
        """Begin again: what ends a step has changed."""
        self.__init__(  # type: ignore[misc]  # the same timer, from its start
            self._warm_up, self._timed, alone=self._alone, timing_begins=self._timing_begins
        )

    def boundary(self) -> None:
        """End a step."""
        now = time.perf_counter_ns()
        duration, self._last = now - self._last, now
        if self.done:
            return
        self.num_steps += 1
        try:
            self._plan.send(duration)
        except StopIteration:
            self.done = True

    @property
    def clock(self) -> str:
        """Return what the times were taken with."""
        return "device events" if self._marks else "host"

    def step_ns(self) -> tuple[float, ...]:
        """Return the timed steps; waits for the device."""
        if not self._marks:
            return tuple(float(t) for t in self._host)
        self._marks[-1].synchronize()
        pairs = zip(self._marks, self._marks[1:], strict=False)
        return tuple(before.elapsed_time(after) * 1e6 for before, after in pairs)

    def _script(self) -> Generator[None, int, None]:
        times: list[int] = []
        graphs, quiet, ready = compiled_graphs(), 0, False
        while not ready and len(times) < self._warm_up * (PATIENCE if self._alone else 1):
            times.append((yield))
            quiet, graphs = (quiet + 1 if graphs == compiled_graphs() else 0), compiled_graphs()
            converged = quiet >= QUIET_STEPS and converged_since(times[-max(len(times) // 2, 8) :]) is not None
            ready = self._alone and len(times) >= self._warm_up and converged
        self.converged = ready or not self._alone
        self.num_warm_up = len(times)
        self._timing_begins()
        self._mark()
        for _ in range(self._timed):
            self._host.append((yield))
            self._mark()

    def _mark(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            self._marks.append(torch.cuda.Event(enable_timing=True))
            self._marks[-1].record()
