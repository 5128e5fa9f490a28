"""Times that no run can have: tasks that overlap on one stream, calls of one thread that cross each other.

A stream runs one task after the other, and a call ends before the one that made it. Recordings whose times were
scaled, merged or taken of a clock that was set back break both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Ints, Mask
from diagnose.model.events import Kind
from diagnose.tables import Tables
from diagnose.tables.names import rows_of

__all__ = ["MAX_CROSSING_SHARE", "MAX_OVERLAP_SHARE", "MIN_OVERLAP_SHARE", "Crossing", "crossing", "overlap_share"]

# Files in whole microseconds let tasks that follow each other overlap by one.
ROUNDING_NS = 1_000
# Of the time of all tasks. In 91 recordings from V100 to B200 and MI300X it is at most 0.6 %: a kernel may begin
# while the last blocks of the one before it run. 2.4 % in a file that was written by hand.
MIN_OVERLAP_SHARE = 0.05
MAX_OVERLAP_SHARE = 0.25  # kernels that are launched to begin early reach less: with more the file shows no step
MIN_CROSSING_NS = 10_000  # in the same recordings calls cross by at most 1.4 µs
MAX_CROSSING_SHARE = 0.05  # of the recording


class Crossing(NamedTuple):
    """Operators and Python frames that begin within another one of their thread and end after it."""

    num: int
    share: float  # of the recording, that they last at once with what they cross


def overlap_share(t: Tables) -> float:
    """Return the share of the tasks' time in which an earlier task of their stream still runs, 0 to 1.

    Nodes of one graph may run side by side under the id of one stream, and do not count.
    """
    tasks = t.tasks
    length = int((tasks.end - tasks.start).sum())
    if not length:
        return 0.0
    order = np.argsort(tasks.stream, kind="stable")
    start, end = tasks.start[order], tasks.end[order]
    stream, launch = tasks.stream[order], tasks.launch[order]
    same = stream[1:] == stream[:-1]
    overlap = np.minimum(_reach(end, same), end[1:]) - start[1:]
    counts = same & (overlap > ROUNDING_NS) & ((launch[1:] != launch[:-1]) | (launch[1:] < 0))
    return float(overlap[counts].sum()) / length


def crossing(t: Tables) -> Crossing:
    """Return how many calls cross another one, for longer than clocks are inexact."""
    events = t.trace.events
    rows = rows_of(t.trace, Kind.OP, Kind.PYTHON)
    if len(rows) < 2:
        return Crossing(0, 0.0)
    rows = rows[np.argsort(events.thread[rows], kind="stable")]
    start, end, thread = events.start[rows], events.end[rows], events.thread[rows]
    same = thread[1:] == thread[:-1]
    both = np.maximum(_crossed_ns(end[:-1], start, end), _crossed_ns(_reach(end, same), start, end))
    crosses = same & (both > MIN_CROSSING_NS)
    return Crossing(int(crosses.sum()), min(float(both[crosses].sum()) / max(int(events.end.max()), 1), 1.0))


def _reach(end: Ints, same: Mask) -> Ints:
    """Return for each event but the first the latest end of those before it, of its own thread or stream.

    ``same``: which events are of the one before them.
    """
    parts = np.split(end, np.flatnonzero(~same) + 1)
    return np.concatenate([np.maximum.accumulate(part) for part in parts])[:-1]


def _crossed_ns(until: Ints, start: Ints, end: Ints) -> Ints:
    """Return for each event but the first how long it lasts within what ends at ``until``, if it outlasts that."""
    crossed: Ints = np.where(until < end[1:], np.minimum(until - start[1:], end[1:] - until), 0)
    return crossed
