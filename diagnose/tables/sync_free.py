"""Intervals in which the host launches without waiting for the device: what a CUDA graph can hold."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Ints, Mask
from diagnose.model.intervals import Intervals, span
from diagnose.tables import Tables, shared_table
from diagnose.tables.names import LAUNCH
from diagnose.tables.syncs import blocking_calls

__all__ = ["MIN_GRAPH_LAUNCHES", "in_sync_free", "sync_free"]

# To replay a graph takes 50 to 200 µs with its guards and its inputs' copies, as much as 10 launches of 5 to 20 µs.
MIN_GRAPH_LAUNCHES = 10


@shared_table
def sync_free(t: Tables) -> Intervals:
    """Return the intervals of the window between two blocking calls that hold launches enough for a graph.

    Without any blocking call that is the whole window, however little is launched in it.
    """
    events, calls = t.trace.events, t.in_window(blocking_calls(t))
    if not len(calls):
        return span(*t.steps.window)
    start = np.append(t.steps.window[0], np.maximum.accumulate(np.sort(events.end[calls], kind="stable")))
    end = np.append(np.sort(events.start[calls], kind="stable"), t.steps.window[1])
    launches = np.sort(events.start[t.calls(LAUNCH)], kind="stable")
    num = np.searchsorted(launches, end) - np.searchsorted(launches, start)
    kept = (num >= MIN_GRAPH_LAUNCHES) & (end > start)
    return Intervals(start[kept], end[kept])


def in_sync_free(t: Tables, time: Ints) -> Mask:
    """Return which times lie in such an interval."""
    intervals = sync_free(t)
    if not len(intervals.start):
        return np.zeros(len(time), bool)
    at = np.searchsorted(intervals.start, time, side="right") - 1
    found: Mask = (at >= 0) & (time <= intervals.end[np.maximum(at, 0)])
    return found
