"""Estimates the size of a trace while it is being recorded.

Nothing in torch counts a profiler's events, so two upper bounds are combined, and the lower one counts: the time times
the highest rate at which events can come, and the growth of the heap times the JSON text that a recorded MB becomes.
The script's own blocks make the second one too large, never too small unless it gives blocks back meanwhile.
"""

from __future__ import annotations

import time

from diagnose.capture.process.process import heap_mb
from diagnose.capture.record.window import WindowKind

__all__ = ["TRACE_POLL_S", "TraceSize"]

TRACE_POLL_S = 0.01  # how often a window's size is looked at
# MB of JSON a second. Measured on one core of 2 GHz: 300 for calls of C functions from Python, 50 for operators with
# shapes, 15 for operators alone; a faster core and several threads are allowed for.
MAX_MB_PER_S: dict[WindowKind, float] = {"light": 200.0, "attribution": 1000.0}
# Measured: 10.9 to 11.2 for Python frames, 1.3 to 2.1 for operators with shapes, 1.2 to 1.4 for operators alone.
JSON_PER_HEAP: dict[WindowKind, float] = {"light": 2.0, "attribution": 11.5}


class TraceSize:
    """The estimate for one window, which begins now; ``mb_per_s`` is the highest rate where one is known."""

    def __init__(self, kind: WindowKind, mb_per_s: float | None = None) -> None:
        self._mb_per_s = mb_per_s or MAX_MB_PER_S[kind]
        self._json_per_heap = JSON_PER_HEAP[kind]
        self._began = time.monotonic()
        self._lowest = heap_mb()

    @property
    def elapsed_s(self) -> float:
        """Return the time since the window began."""
        return time.monotonic() - self._began

    def safe_s(self, limit_mb: float) -> float:
        """Return for how long the trace cannot reach a size, whatever is recorded."""
        return limit_mb / self._mb_per_s - self.elapsed_s - TRACE_POLL_S

    def mb(self) -> float:
        """Return an upper bound of the size at the next look."""
        by_time = (self.elapsed_s + TRACE_POLL_S) * self._mb_per_s
        heap = heap_mb()
        if heap is None or self._lowest is None:
            return by_time
        self._lowest = min(self._lowest, heap)
        return min(by_time, (heap - self._lowest) * self._json_per_heap)
