"""How much of the last marked steps a recording holds: its end may cut them off, or lie within the last mark."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Ints
from diagnose.model.events import Kind, Trace
from diagnose.model.intervals import among, distinct
from diagnose.tables.graph_capture import captured
from diagnose.tables.names import GRAPH_LAUNCH, KERNEL_LAUNCH, STEP_MARK, matching, rows_of

__all__ = ["end_without_stop", "num_whole"]

MIN_CROPPED = 10  # launches at the end without a task; a few are lost in whole files too


def num_whole(trace: Trace, start: Ints, end: Ints) -> int:
    """Return how many of the steps lie before the end of the device's records, all where none does.

    A file may be cropped: the host then launches on, and no task of these launches is there. What the device did
    meanwhile is not known, and no idle time. Launches of graphs do not count: their nodes may be missing anywhere.
    """
    events = trace.events
    launches = matching(trace, (Kind.RUNTIME,), KERNEL_LAUNCH)
    launches = launches[(events.start[launches] >= start[0]) & (events.start[launches] < end[-1])]
    launches = launches[~captured(trace, launches) & ~among(launches, matching(trace, (Kind.RUNTIME,), GRAPH_LAUNCH))]
    tasks = rows_of(trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    has_task = np.flatnonzero(among(launches, distinct(events.cause[tasks])))
    if not len(has_task) or len(launches) - has_task[-1] - 1 < MIN_CROPPED:
        return len(start)
    whole = int(np.searchsorted(end, events.start[launches[has_task[-1] + 1]], side="right"))
    return whole or len(start)


def end_without_stop(trace: Trace, start: Ints, end: Ints) -> int:
    """Return when the last step ends: as long after its last event on the host as any other step at most.

    Its mark may stay open while the loop shuts its workers down and the profiler stops, which no step does.
    """
    events = trace.events
    rows = rows_of(trace, Kind.OP, Kind.ANNOTATION, Kind.PYTHON, Kind.RUNTIME, Kind.GC)
    rows = rows[~among(rows, matching(trace, (Kind.ANNOTATION, Kind.OP), STEP_MARK))]
    ended = np.sort(events.end[rows], kind="stable")
    at = np.searchsorted(ended, end, side="right") - 1
    if at[0] < 0 or (ended[at] <= start).any():
        return int(end[-1])
    rest = end - ended[at]
    return int(end[-1] - max(rest[-1] - rest[:-1].max(), 0))
