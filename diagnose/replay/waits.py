"""Which tasks a blocking call waits for, and which tasks of other streams a task waits for."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from diagnose.model.events import Ints, Kind
from diagnose.model.intervals import distinct
from diagnose.replay.host_events import AWAITED, Points
from diagnose.tables import Tables
from diagnose.tables.names import rows_of

__all__ = ["MARGIN_NS", "awaited", "inferred_events", "recorded_events"]

Index = npt.NDArray[np.intp]
Pairs = tuple[list[int], list[int]]

MARGIN_NS = 2_000  # the clocks of host and device agree to about a microsecond
# A task that waited for an event starts within this time of the event's task; 2 to 6 µs in traces with sync records.
EVENT_NS = 10_000
_WHOLE_DEVICE = re.compile(r"(Device|Ctx)Synchronize|^(cuda|hip)Memcpy(?!.*Async)")


class _Lanes:
    """The tasks of each stream in the order in which they were launched."""

    def __init__(self, t: Tables) -> None:
        tasks = t.tasks
        begun = np.where(tasks.launch >= 0, t.trace.events.start[tasks.launch], tasks.start)
        self.end = tasks.end
        self.task: dict[int, Index] = {}
        self.begun: dict[int, Ints] = {}
        for stream in distinct(tasks.stream).tolist():
            mine = np.flatnonzero(tasks.stream == stream)
            mine = mine[np.argsort(begun[mine], kind="stable")]
            self.task[stream], self.begun[stream] = mine, begun[mine]

    def last(self, stream: int, before: int) -> int:
        """Return the task that was launched last on the stream before a time, -1 for none."""
        at = int(np.searchsorted(self.begun[stream], before)) - 1
        return int(self.task[stream][at]) if at >= 0 else -1


def awaited(t: Tables, points: Points) -> Pairs:
    """Return (task, point) for each blocking call and the tasks whose end it waits for."""
    events, lanes = t.trace.events, _Lanes(t)
    own: dict[int, list[int]] = {}
    for task, launch in enumerate(t.tasks.launch.tolist()):
        own.setdefault(launch, []).append(task)
    syncs = rows_of(t.trace, Kind.SYNC)
    stream_of = dict(zip(events.cause[syncs].tolist(), events.stream[syncs].tolist(), strict=True))
    tasks: list[int] = []
    ends: list[int] = []
    for point in np.flatnonzero(points.sort == AWAITED).tolist():
        row = int(points.row[point])
        found = own.get(row) or _drained(t, lanes, row, stream_of.get(row, -1))
        tasks += found
        ends += [point] * len(found)
    return tasks, ends


def _drained(t: Tables, lanes: _Lanes, call: int, stream: int) -> list[int]:
    """Return the last tasks that had to end before a synchronisation returned.

    The stream is known where sync records were captured. Without them the one that ended last within the call is
    taken, and all of them for a synchronisation of the whole device.
    """
    begin, finish = int(t.trace.events.start[call]), int(t.trace.events.end[call])
    streams = [stream] if stream in lanes.task else list(lanes.task)
    last = [task for task in (lanes.last(s, begin) for s in streams) if task >= 0]
    last = [task for task in last if lanes.end[task] <= finish + MARGIN_NS]
    if len(last) < 2 or _WHOLE_DEVICE.search(t.name(call)):
        return last
    return [max(last, key=lambda task: int(lanes.end[task]))]


def recorded_events(t: Tables) -> Pairs:
    """Return (task, task) for each wait on an event that the file records."""
    events, lanes = t.trace.events, _Lanes(t)
    waits = rows_of(t.trace, Kind.SYNC)
    waits = waits[(events.awaits[waits] >= 0) & (events.cause[waits] >= 0)]
    if not len(waits):
        return [], []
    runtime = rows_of(t.trace, Kind.RUNTIME)
    record_of = dict(zip(events.correlation[runtime].tolist(), runtime.tolist(), strict=True))
    sources: list[int] = []
    targets: list[int] = []
    for wait in waits.tolist():
        stream, record = int(events.stream[wait]), record_of.get(int(events.awaits[wait]), -1)
        if stream not in lanes.task or record < 0:
            continue
        at = int(np.searchsorted(lanes.begun[stream], events.start[events.cause[wait]]))
        if at == len(lanes.task[stream]):
            continue
        target = int(lanes.task[stream][at])
        before = [lanes.last(s, int(events.start[record])) for s in lanes.task if s != stream]
        before = [s for s in before if s >= 0 and lanes.end[s] <= t.tasks.start[target] + MARGIN_NS]
        if before:
            sources.append(max(before, key=lambda s: int(lanes.end[s])))
            targets.append(target)
    return sources, targets


def inferred_events(t: Tables, allowed: Ints) -> Pairs:
    """Return (task, task) where a task began right when one of another stream ended, and nothing else held it.

    ``allowed`` is when its own stream and its launch would have let each task begin.
    """
    tasks = t.tasks
    by_end = np.argsort(tasks.end, kind="stable")
    ended = tasks.end[by_end]
    late = np.flatnonzero(tasks.start - allowed > EVENT_NS)
    at = np.searchsorted(ended, tasks.start[late], side="right") - 1
    late, at = late[at >= 0], at[at >= 0]
    source = by_end[at]
    mine = (tasks.start[late] - ended[at] <= EVENT_NS) & (tasks.stream[source] != tasks.stream[late])
    return source[mine].tolist(), late[mine].tolist()
