"""Graphs that are being captured: launches go into the graph then and do not run."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Mask, Rows
from diagnose.model.events import Kind, Trace
from diagnose.model.intervals import Intervals, distinct
from diagnose.tables.names import CAPTURE_BEGIN, CAPTURE_END, GRAPH_CAPTURE, matching

__all__ = ["captured", "captures_of"]


def captures_of(trace: Trace, thread: int) -> Intervals:
    """Return the captures on a thread, from the begin of one to the end of the next call that ends one.

    A capture that began before the file does, or that did not end in it, lasts from its begin or to its end.
    """
    events = trace.events
    calls = matching(trace, (Kind.RUNTIME,), CAPTURE_BEGIN), matching(trace, (Kind.RUNTIME,), CAPTURE_END)
    begins, ends = (rows[events.thread[rows] == thread] for rows in calls)
    if not len(begins) and not len(ends):
        return Intervals(events.start[:0], events.end[:0])
    start, end = events.start[begins], np.sort(events.end[ends], kind="stable")
    if len(end) and (not len(start) or end[0] < start[0]):
        start = np.append(events.start.min(), start)
    end = np.append(end, events.end.max())
    until = end[np.searchsorted(end, start)]
    is_first = np.append(True, until[1:] != until[:-1])  # of several begins before one end
    return Intervals(start[is_first], until[is_first])


def captured(trace: Trace, rows: Rows) -> Mask:
    """Return which calls fell into a capture on their own thread."""
    events = trace.events
    inside = np.zeros(len(rows), bool)
    if not len(matching(trace, (Kind.RUNTIME,), GRAPH_CAPTURE)):
        return inside
    for thread in distinct(events.thread[rows]).tolist():
        regions = captures_of(trace, thread)
        if not len(regions.start):
            continue
        mine = np.flatnonzero(events.thread[rows] == thread)
        began = events.start[rows[mine]]
        at = np.searchsorted(regions.start, began, side="right") - 1
        inside[mine] = (at >= 0) & (began < regions.end[np.maximum(at, 0)])
    return inside
