"""Launches that block because the device's queue is full: the host waits there for the device, it does not work.

The driver lets a program queue about a thousand tasks (1017 were pending at each of these calls on an H100); a launch
beyond them returns once the device has taken one out. A loop that never waits elsewhere spends its host time there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Ints, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import distinct
from diagnose.tables import Tables, shared_table
from diagnose.tables.names import rows_of

__all__ = ["CALL_NS", "FullQueue", "full_queue"]

CALL_NS = 10_000.0  # what a launch takes where there is room: 3 to 8 µs while it is recorded
MIN_BLOCKED_NS = 50_000
MIN_PENDING = 128  # tasks; a launch that takes long with fewer before it waits for something else
SPREAD = 0.05  # of the limit: what is pending at the end of such calls differs little
TAKEN_NS = 50_000  # after a task ended the next one is taken out, and the launch returns


class FullQueue(NamedTuple):
    """Blocked launches, in time order."""

    calls: Rows  # rows of the trace
    freed_by: Rows  # the row of the device task whose end let the next one be taken out


@shared_table
def full_queue(t: Tables) -> FullQueue:
    """Return the launches of the window that waited for room in the queue."""
    none = np.empty(0, np.intp)
    if t.device_id < 0:
        return FullQueue(none, none)
    events = t.trace.events
    tasks = rows_of(t.trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    tasks = tasks[(events.device[tasks] == t.device_id) & (events.cause[tasks] >= 0)]
    launches = distinct(events.cause[tasks]).astype(np.intp)
    calls = t.in_window(launches[(events.end - events.start)[launches] >= MIN_BLOCKED_NS])
    if not len(calls):
        return FullQueue(none, none)
    queued, begun = (
        np.sort(events.start[events.cause[tasks]], kind="stable"),
        np.sort(events.start[tasks], kind="stable"),
    )
    pending = _up_to(queued, events.end[calls]) - _up_to(begun, events.end[calls])
    tasks = tasks[np.argsort(events.end[tasks], kind="stable")]
    at = _up_to(events.end[tasks], events.end[calls]) - 1
    freed_by = tasks[np.maximum(at, 0)]
    blocked = (pending >= max(MIN_PENDING, (1 - SPREAD) * pending.max())) & (at >= 0)
    blocked &= events.end[calls] - events.end[freed_by] <= TAKEN_NS
    return FullQueue(calls[blocked], freed_by[blocked])


def _up_to(times: Ints, moments: Ints) -> Ints:
    """Return how many of the sorted times are no later than each moment."""
    return np.searchsorted(times, moments, side="right").astype(np.int64)
