"""Estimates the size of a trace while it is being recorded.

Nothing in torch counts a profiler's events, so upper bounds are combined, and the lowest one counts: the time times
the highest rate at which events can come; the growth of the heap times the JSON text that a recorded MB becomes; and,
where it is known what a step gives, twice that for each step. What the script itself takes is left out of the growth,
as far as steps without a profiler have shown it: what it keeps from step to step, and within a step what it takes and
gives back.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from diagnose.capture.process.process import heap_mb
from diagnose.capture.record.window import WindowKind

__all__ = ["HEAP_POLL_S", "SAFETY", "TRACE_POLL_S", "ScriptHeap", "StepSize", "TraceSize"]

TRACE_POLL_S = 0.01  # how often a window's size is looked at
# MB of JSON a second. Measured on one core of 2 GHz: 300 for calls of C functions from Python, 50 for operators with
# shapes, 15 for operators alone; a faster core and several threads are allowed for.
MAX_MB_PER_S: dict[WindowKind, float] = {"light": 200.0, "attribution": 1000.0}
# Measured: 10.9 to 11.2 for Python frames, 1.3 to 2.1 for operators with shapes, 1.2 to 1.4 for operators alone.
JSON_PER_HEAP: dict[WindowKind, float] = {"light": 2.0, "attribution": 11.5}
SAFETY = 2.0  # against the mean rate of a window: events come in bursts
MIN_STEP_S = 1e-6
MAX_LENGTHENING = 4.0  # of a step, by being recorded on a busy machine: one that lasts longer does something else

HEAP_POLL_S = 0.05  # how often the heap is looked at in steps without a profiler


class ScriptHeap:
    """What steps without a profiler take of the heap."""

    def __init__(self) -> None:
        self._began = self._latest = 0.0  # at step boundaries: when and how much
        self._first: float | None = None
        self._now = 0.0
        self._low: float | None = None
        self.swing_mb = 0.0  # what the heap grows by within a step, at most

    def look(self) -> None:
        """Take notice of the heap, on any thread."""
        heap = heap_mb()
        if heap is None:
            return
        low = heap if self._low is None else min(self._low, heap)
        self._low, self.swing_mb = low, max(self.swing_mb, heap - low)

    def boundary(self) -> None:
        """Take notice that a step without a profiler is over."""
        heap, now = heap_mb(), time.monotonic()
        if heap is None:
            return
        if self._first is None:
            self._first, self._began = heap, now
        self._latest, self._now, self._low = heap, now, heap

    @property
    def kept_mb_per_s(self) -> float:
        """Return how fast the script's own memory grows from step to step."""
        if self._first is None or self._now <= self._began:
            return 0.0
        return max(0.0, (self._latest - self._first) / (self._now - self._began))


class StepSize(NamedTuple):
    """What a step is expected to give and how long it takes without the profiler."""

    mb: float
    s: float

    @property
    def most_mb_per_s(self) -> float:
        """Return the highest rate to be reckoned with."""
        return SAFETY * self.mb / max(self.s, MIN_STEP_S)


class TraceSize:
    """The estimate for one window, which begins now.

    ``mb_per_s`` is the highest rate, ``step`` what a step gives, where these are known.
    """

    def __init__(
        self,
        kind: WindowKind,
        mb_per_s: float | None = None,
        script: ScriptHeap | None = None,
        step: StepSize | None = None,
    ) -> None:
        self._step = step
        self._num_steps = 0
        self._mb_per_s = mb_per_s or MAX_MB_PER_S[kind]
        self._json_per_heap = JSON_PER_HEAP[kind]
        self._kept_mb_per_s = script.kept_mb_per_s if script is not None else 0.0
        self._swing_mb = script.swing_mb if script is not None else 0.0
        self._began = self._step_began = time.monotonic()
        self._lowest = heap_mb()
        self.whole_steps_mb = 0.0  # an upper bound of what the steps give that are over

    @property
    def elapsed_s(self) -> float:
        """Return the time since the window began."""
        return time.monotonic() - self._began

    def safe_s(self, limit_mb: float) -> float:
        """Return for how long the trace cannot reach a size, whatever is recorded."""
        return limit_mb / self._mb_per_s - self.elapsed_s - TRACE_POLL_S

    def boundary(self) -> None:
        """Take notice that a step is over, so that what it took for itself has been given back."""
        self._num_steps += 1
        self._step_began = time.monotonic()
        self.whole_steps_mb = self._estimate(0.0, self._num_steps)

    def mb(self) -> float:
        """Return an upper bound of the size at the next look."""
        return max(self.whole_steps_mb, self._estimate(self._swing_mb, self._num_steps + 1))

    def _estimate(self, swing_mb: float, num_steps: int) -> float:
        bound = min((self.elapsed_s + TRACE_POLL_S) * self._mb_per_s, self._by_steps(num_steps))
        heap = heap_mb()
        if heap is None or self._lowest is None:
            return bound
        self._lowest = min(self._lowest, heap)
        grown = heap - self._lowest - swing_mb - self.elapsed_s * self._kept_mb_per_s
        return min(bound, max(0.0, grown) * self._json_per_heap)

    def _by_steps(self, num: int) -> float:
        """Return what so many steps give at most; no bound where the present one is unlike those before."""
        if self._step is None or time.monotonic() - self._step_began > MAX_LENGTHENING * self._step.s:
            return math.inf
        return SAFETY * num * self._step.mb
