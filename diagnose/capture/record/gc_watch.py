"""Records when Python's garbage collector ran on the training thread.

The profiler records collections only together with stacks, which slow the step down; this needs neither.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Mapping

__all__ = ["GcWatch"]

# Collections of the youngest objects take microseconds and are many: they are work like any other.
MIN_PAUSE_NS = 100_000
MAX_RUNS = 50_000  # that are kept: a run that is watched to its end may take days


class GcWatch:
    """Keeps (begin, end) of collections on one thread, wall clock in unix ns, while it is started."""

    def __init__(self, thread_id: int) -> None:
        self._thread_id = thread_id
        self._began = 0
        self.runs: list[tuple[int, int]] = []

    def start(self) -> None:
        """Start recording; no effect where it is started already."""
        if self._note not in gc.callbacks:
            gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Stop recording; no effect where it is not started."""
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)
        self._began = 0

    def _note(self, phase: str, _info: Mapping[str, int]) -> None:
        if threading.get_ident() != self._thread_id:
            return
        now = time.time_ns()
        if phase == "start":
            self._began = now
        elif self._began and now - self._began >= MIN_PAUSE_NS and len(self.runs) < MAX_RUNS:
            self.runs.append((self._began, now))
            self._began = 0
