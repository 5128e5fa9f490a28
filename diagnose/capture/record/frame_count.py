"""Counts the Python functions that a step calls, before the profiler is to record each of them.

A dataset or a loop in pure Python calls a million functions a step; recorded they are 250 MB, and minutes of work.
"""

from __future__ import annotations

import sys
from types import FrameType

__all__ = ["JSON_BYTES", "MAX_FUNCTIONS", "MAX_FUNCTIONS_PER_STEP", "FrameCount"]

JSON_BYTES = 330  # of a trace for each call of a function, measured
MAX_FUNCTIONS = 100_000  # in the attribution window: 33 MB, two seconds of writing and reading
MAX_FUNCTIONS_PER_STEP = MAX_FUNCTIONS // 2  # one step is recorded before those that count
_EVENTS = 2  # of a function: its call and its return


class FrameCount:
    """Counts on the thread that starts it, up to what a step may call: 50 ms of its time at most."""

    def __init__(self) -> None:
        self._events = 0
        self._running = False
        self.is_known = False

    def start(self) -> None:
        """Begin to count; does nothing where the script has a profile function of its own."""
        if sys.getprofile() is None:
            self._running = True
            sys.setprofile(self._on_event)

    def stop(self) -> None:
        """Stop counting."""
        if self._running:
            self._running, self.is_known = False, True
            if sys.getprofile() == self._on_event:
                sys.setprofile(None)

    @property
    def functions(self) -> int:
        """Return how many functions were called; above MAX_FUNCTIONS_PER_STEP there may have been any number more."""
        return self._events // _EVENTS

    def _on_event(self, _frame: FrameType, _event: str, _arg: object) -> None:
        self._events += 1
        if self._events > _EVENTS * (MAX_FUNCTIONS_PER_STEP + 1):
            sys.setprofile(None)
