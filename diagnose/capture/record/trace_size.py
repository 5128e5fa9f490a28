"""Estimates the size of a trace while it is being recorded.

Nothing in torch counts a profiler's events, so two upper bounds are combined, and the lower one counts: the time times
the highest rate at which events can come, and the growth of the heap times the JSON text that a recorded MB becomes.
What the script itself takes is left out of the growth, as far as steps without a profiler have shown it: what it keeps
from step to step, and within a step what it takes and gives back.
"""

from __future__ import annotations

import time

from diagnose.capture.process.process import heap_mb
from diagnose.capture.record.window import WindowKind

__all__ = ["HEAP_POLL_S", "TRACE_POLL_S", "ScriptHeap", "TraceSize"]

TRACE_POLL_S = 0.01  # how often a window's size is looked at
# MB of JSON a second. Measured on one core of 2 GHz: 300 for calls of C functions from Python, 50 for operators with
# shapes, 15 for operators alone; a faster core and several threads are allowed for.
MAX_MB_PER_S: dict[WindowKind, float] = {"light": 200.0, "attribution": 1000.0}
# Measured: 10.9 to 11.2 for Python frames, 1.3 to 2.1 for operators with shapes, 1.2 to 1.4 for operators alone.
JSON_PER_HEAP: dict[WindowKind, float] = {"light": 2.0, "attribution": 11.5}


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


class TraceSize:
    """The estimate for one window, which begins now; ``mb_per_s`` is the highest rate where one is known."""

    def __init__(self, kind: WindowKind, mb_per_s: float | None = None, script: ScriptHeap | None = None) -> None:
        self._mb_per_s = mb_per_s or MAX_MB_PER_S[kind]
        self._json_per_heap = JSON_PER_HEAP[kind]
        self._kept_mb_per_s = script.kept_mb_per_s if script is not None else 0.0
        self._swing_mb = script.swing_mb if script is not None else 0.0
        self._began = time.monotonic()
        self._lowest = heap_mb()
        self._whole_steps_mb = 0.0

    @property
    def elapsed_s(self) -> float:
        """Return the time since the window began."""
        return time.monotonic() - self._began

    def safe_s(self, limit_mb: float) -> float:
        """Return for how long the trace cannot reach a size, whatever is recorded."""
        return limit_mb / self._mb_per_s - self.elapsed_s - TRACE_POLL_S

    def boundary(self) -> None:
        """Take notice that a step is over, so that what it took for itself has been given back."""
        self._whole_steps_mb = self._estimate(0.0)

    def mb(self) -> float:
        """Return an upper bound of the size at the next look."""
        return max(self._whole_steps_mb, self._estimate(self._swing_mb))

    def _estimate(self, swing_mb: float) -> float:
        by_time = (self.elapsed_s + TRACE_POLL_S) * self._mb_per_s
        heap = heap_mb()
        if heap is None or self._lowest is None:
            return by_time
        self._lowest = min(self._lowest, heap)
        grown = heap - self._lowest - swing_mb - self.elapsed_s * self._kept_mb_per_s
        return min(by_time, max(0.0, grown) * self._json_per_heap)
