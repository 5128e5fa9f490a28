"""The points of host threads at which something is queued, awaited, or a step ends.

Some launches are waits too: they block because the device's queue is full, and the host waits there for the device, it
does not work. The driver lets a program queue about a thousand tasks (1017 were pending at each of these calls on an
H100); a launch beyond them returns once the device has taken one out. A loop that never waits elsewhere spends its host
time there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import distinct
from diagnose.tables import Tables
from diagnose.tables.names import rows_of

__all__ = ["AWAITED", "CALLED", "CALL_NS", "MARK", "Points", "find_points", "handoffs"]

CALL_NS = 10_000.0  # what a launch takes where there is room: 3 to 8 µs while it is recorded
CALLED, AWAITED, MARK = 0, 1, 2


class Points(NamedTuple):
    """Points in time order; columns are parallel."""

    time: Ints
    thread: Ints
    row: Rows  # the call; -1 for a mark
    sort: npt.NDArray[np.int8]  # CALLED: begin of a launch or a blocking call; AWAITED: end of a blocking call; MARK


def find_points(t: Tables) -> Points:
    """Return the points of the window."""
    events = t.trace.events
    begin, finish = t.steps.window
    launches = t.in_window(distinct(t.tasks.launch[t.tasks.launch >= 0]).astype(np.intp))
    waits = t.in_window(distinct(t.blocking_calls, t.freeing_calls.calls, t.full_queue.calls).astype(np.intp))
    waits = waits[events.end[waits] <= finish]
    calls = distinct(launches, waits).astype(np.intp)
    marks = np.append(t.steps.start[1:], t.steps.end[-1:]) if t.steps.marked else np.empty(0, np.int64)
    marks = marks[(marks > begin) & (marks <= finish)]
    time = np.concatenate([events.start[calls], events.end[waits], marks]).astype(np.int64)
    thread = np.concatenate([events.thread[calls], events.thread[waits], np.full(len(marks), t.steps.thread)])
    row = np.concatenate([calls, waits, np.full(len(marks), -1)]).astype(np.intp)
    sort = np.repeat(np.array([CALLED, AWAITED, MARK], np.int8), [len(calls), len(waits), len(marks)])
    # At one time an earlier call's end comes before a later call's begin, and both before the end of a step.
    order = np.lexsort((sort, np.where(row < 0, len(events.start), row), time))
    return Points(time[order], thread[order].astype(np.int64), row[order], sort[order])


def handoffs(t: Tables, points: Points) -> Rows:
    """Return, for each point, the point of another thread that it follows, -1 for none.

    A thread follows another one where it was in no operator and no call when the other one reached its last point
    before: the training thread during backward, the backward thread during forward.
    """
    found = np.full(len(points.time), -1, np.intp)
    switch = np.flatnonzero(points.thread[1:] != points.thread[:-1]) + 1
    switch = switch[points.sort[switch] != AWAITED]
    events = t.trace.events
    rows = rows_of(t.trace, Kind.OP, Kind.RUNTIME)
    for thread in distinct(points.thread[switch]).tolist():
        mine = switch[points.thread[switch] == thread]
        busy = rows[events.thread[rows] == thread]
        reach = np.maximum.accumulate(events.end[busy])
        at = np.searchsorted(events.start[busy], points.time[mine - 1], side="right") - 1
        free = np.ones(len(mine), bool)
        free[at >= 0] = reach[at[at >= 0]] <= points.time[mine - 1][at >= 0]
        found[mine[free]] = mine[free] - 1
    return found
