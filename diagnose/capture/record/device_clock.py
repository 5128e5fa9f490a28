"""Times steps between events in the device's queue: the host may be many steps ahead of what the device works on.

Where a script never waits for its device, a step takes the host as long as queueing it, until the queue is full. Steps
of 14 ms were found to take the host 3.5 ms for the first fifty of them.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

__all__ = ["DeviceClock"]

RECENT_STEPS = 16  # whose median is what a step takes now
PATIENCE_S = 2.0  # for the device to end what is queued when the times are written
POLL_S = 0.005


class DeviceClock:
    """Puts an event into the queue at every step boundary; nothing waits for it while steps are timed.

    Only CUDA and HIP have such events here; without them, and for steps inside the capture of a graph, no time is
    known.
    """

    def __init__(self) -> None:
        self.step_ns: dict[int, int] = {}  # by number of the step, for those that the device has ended
        self._waiting: deque[tuple[int, Any]] = deque()  # numbers of steps with the event after each, oldest first

    def mark(self, number: int) -> None:
        """State that the host has queued all of step ``number``; the first call marks where the next one begins."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
            return
        try:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._waiting.append((number, event))
            self._collect()
        except RuntimeError:  # the device's own error is the script's to meet
            self._waiting.clear()

    def finish(self) -> None:
        """Wait up to two seconds for the steps that the device still works on."""
        ends = time.monotonic() + PATIENCE_S
        try:
            while len(self._waiting) > 1 and time.monotonic() < ends:
                self._collect()
                time.sleep(POLL_S if len(self._waiting) > 1 else 0)
        except RuntimeError:
            self._waiting.clear()

    @property
    def recent_ns(self) -> float | None:
        """Return the median of the latest steps that the device has ended, None before the first."""
        latest = list(itertools.islice(reversed(self.step_ns.values()), RECENT_STEPS))
        return statistics.median(latest) if latest else None

    def times(self, first: int, host_ns: Sequence[int]) -> list[int]:
        """Return the times of steps from number ``first`` on, the host's where the device's is not known."""
        return [self.step_ns.get(first + i, host) for i, host in enumerate(host_ns)]

    def _collect(self) -> None:
        while len(self._waiting) > 1 and self._waiting[1][1].query():
            (number, begin), (following, end) = self._waiting.popleft(), self._waiting[0]
            if following == number + 1:
                self.step_ns[following] = round(begin.elapsed_time(end) * 1e6)
