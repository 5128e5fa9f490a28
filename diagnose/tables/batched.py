"""Launches that reach the device in batches: a driver may keep what was launched until the host waits for it.

That is how Windows runs CUDA without a compute driver. The device idles before work that was launched long ago, and
begins with it only as the host stands in a wait. Once may be chance; again and again it is the price of that wait.
"""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Mask
from diagnose.tables import Tables, shared_table
from diagnose.tables.syncs import blocking_calls

__all__ = ["batched_gaps"]

MIN_GAPS = 3
MIN_CALLS_SHARE = 0.5  # of the blocking calls, in which the device begins with what was launched before


@shared_table
def batched_gaps(t: Tables) -> Mask:
    """Return which gaps end, before work that was launched already, with the first task to begin within a wait."""
    gaps, events = t.gaps, t.trace.events
    none = np.zeros(len(gaps.start), bool)
    calls = t.in_window(blocking_calls(t))
    if not len(calls) or not len(gaps.start):
        return none
    calls = calls[np.argsort(events.start[calls], kind="stable")]
    at = np.searchsorted(events.start[calls], gaps.end) - 1
    begun, returned = events.start[calls][at], events.end[calls][at]
    inside = (at >= 0) & (gaps.launch >= 0) & (gaps.end < returned)
    inside &= events.end[gaps.launch] <= begun
    inside &= gaps.end - np.maximum(gaps.queued_at, gaps.start) >= gaps.latency_ns
    tasks = np.sort(t.tasks.start, kind="stable")
    inside &= np.searchsorted(tasks, begun) == np.searchsorted(tasks, gaps.end)
    enough = max(MIN_GAPS, MIN_CALLS_SHARE * len(calls))
    return inside if inside.sum() >= enough else none
