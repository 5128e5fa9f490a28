"""What others take from a thread of this process: the time for which it is ready to run and has no core.

Linux counts it for each thread, exactly: the second number of its schedstat (Documentation/scheduler/sched-stats.rst).
"""

from __future__ import annotations

import os
import threading
import time
from functools import cache
from typing import NamedTuple


@cache
def _counts(thread: int) -> int:
    return os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)


def queued_ns() -> int:
    """Return for how long this thread has been ready without a core; 0 where the system does not count it."""
    try:
        return int(os.pread(_counts(threading.get_native_id()), 64, 0).split()[1])
    except (OSError, IndexError, ValueError):
        return 0


class CpuTime(NamedTuple):
    """What has run so far, in nanoseconds."""

    thread_ns: int
    process_ns: int

    @classmethod
    def now(cls) -> CpuTime:
        """Return what this thread and all threads of its process have run."""
        return cls(time.thread_time_ns(), time.process_time_ns())

    def apart(self, own_ns: float) -> float:
        """Return for what share of some nanoseconds since then the thread slept, or another one of its process ran.

        A thread that neither sleeps nor has helpers is all that its steps take: each nanosecond without a core made
        them longer by one. Elsewhere it may be hidden behind what the thread would have waited for anyway.

        Args:
            own_ns: How long that was, without the time for which the thread had no core.
        """
        now = CpuTime.now()
        ran = now.thread_ns - self.thread_ns
        helped = now.process_ns - self.process_ns - ran
        return (max(own_ns - ran, 0.0) + max(helped, 0)) / own_ns if own_ns > 0 else 1.0
