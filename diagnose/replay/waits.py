"""Which tasks a blocking call waits for, and which tasks of other streams a task waits for.

The file seldom records why a task of another stream had to wait. Two reasons show in the times: an event (the task
starts right after another stream's task has ended) and room (it starts in the last wave of a kernel whose blocks fill
the device, since blocks are given out in the order of the kernels).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import distinct, grouped
from diagnose.tables import Tables
from diagnose.tables.names import rows_of
from diagnose.tables.syncs import AGREE_NS

# The points of host threads at which something is queued, awaited, or a step ends.
#
# Some launches are waits too: they block because the device's queue is full, and the host waits there for the device,
# it does not work. The driver lets a program queue about a thousand tasks (1017 were pending at each of these calls on
# an H100); a launch beyond them returns once the device has taken one out. A loop that never waits elsewhere spends
# its host time there.


class Sort(IntEnum):
    """What a point is."""

    CALLED = 0  # begin of a launch or a blocking call
    AWAITED = 1  # end of a blocking call
    MARK = 2  # end of a step


class Points(NamedTuple):
    """Points in time order; columns are parallel."""

    time: Ints
    thread: Ints
    row: Rows  # the call; -1 for a mark
    sort: npt.NDArray[np.int8]  # a Sort


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
    sort = np.repeat(np.array(list(Sort), np.int8), [len(calls), len(waits), len(marks)])
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
    switch = switch[points.sort[switch] != Sort.AWAITED]
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


Pairs = tuple[list[int], list[int]]

MARGIN_NS = AGREE_NS
# A task that waited for an event starts within this time of the event's task: 2 to 6 µs after it in traces with sync
# records of CUDA, 14 to 19 µs in the trace of an MI300X, and as long before collectives on an A100.
EVENT_NS = 25_000
LATE_NS = 10_000  # a task that starts so long after all that is known to hold it waited for something else
# Of a kernel's length, what its last wave takes at most: with more the device was not full. Of 285 tasks that waited
# for 0.3 ms and more in four traces 271 started in this last part of a kernel, most in its last hundredth.
LAST_WAVE = 0.5
# A synchronisation of the device waits for the tasks of this many streams at most, those that end last: no recording
# at hand has more than 13 streams, and what ended long before holds nothing back.
MAX_AWAITED = 64
QUEUED_BEFORE = np.iinfo(np.int64).min
_WHOLE_DEVICE = r"(Device|Ctx)Synchronize|^(cuda|hip)Memcpy(?!.*Async)|Free"


class _Lanes:
    """The tasks of each stream in the order in which they were launched."""

    def __init__(self, t: Tables) -> None:
        tasks = t.tasks
        begun = np.where(tasks.launch >= 0, t.trace.events.start[tasks.launch], tasks.start)
        self.end = tasks.end
        self._place = grouped(tasks.stream).of
        self.task: dict[int, Rows] = {}
        self.begun: dict[int, Ints] = {}
        for stream, mine in t.streams.items():
            linked = np.flatnonzero(tasks.launch[mine] >= 0)
            if len(linked):  # what ran before them without a record of its launch was queued before the recording
                begun[mine[: linked[0]]] = QUEUED_BEFORE
            by_launch = mine[np.argsort(begun[mine], kind="stable")]
            self.task[stream], self.begun[stream] = by_launch, begun[by_launch]
        self._by_launch = np.argsort(begun, kind="stable")
        self._begun = begun[self._by_launch]

    def last(self, stream: int, before: int) -> int:
        """Return the task that was launched last on the stream before a time, -1 for none."""
        at = int(np.searchsorted(self.begun[stream], before)) - 1
        return int(self.task[stream][at]) if at >= 0 else -1

    def last_of_each(self, before: Ints) -> Iterator[Rows]:
        """Yield for each time, which ascend, the task that was launched last on each stream before it."""
        latest, done = np.full(len(self.task), -1, np.intp), 0
        for num in np.searchsorted(self._begun, before).tolist():
            new = self._by_launch[done:num]
            latest[self._place[new]] = new
            done = num
            yield latest[latest >= 0]


def awaited(t: Tables, points: Points) -> Pairs:
    """Return (task, point) for each blocking call and the tasks whose end it waits for."""
    events, lanes = t.trace.events, _Lanes(t)
    own: dict[int, list[int]] = {}
    for task, launch in enumerate(t.tasks.launch.tolist()):
        own.setdefault(launch, []).append(task)
    syncs = rows_of(t.trace, Kind.SYNC)
    stream_of = dict(zip(events.cause[syncs].tolist(), events.stream[syncs].tolist(), strict=True))
    at = {row: task for task, row in enumerate(t.tasks.row.tolist())}
    room = {call: at.get(task, -1) for call, task in zip(*(rows.tolist() for rows in t.full_queue), strict=True)}
    waiting = np.flatnonzero(points.sort == Sort.AWAITED)
    calls = points.row[waiting].tolist()
    known = own | {call: [task] if task >= 0 else [] for call, task in room.items()}
    known |= _drained(t, lanes, [row for row in calls if row not in known], stream_of)
    tasks: list[int] = []
    ends: list[int] = []
    for point, row in zip(waiting.tolist(), calls, strict=True):
        tasks += known[row]
        ends += [point] * len(known[row])
    return tasks, ends


def _drained(t: Tables, lanes: _Lanes, calls: list[int], stream_of: Mapping[int, int]) -> dict[int, list[int]]:
    """Return by synchronisation the last tasks that had to end before it returned.

    The stream is known where sync records were captured. Without them the one that ended last within the call is
    taken, and those of all streams for a synchronisation of the whole device.
    """
    start, latest = t.trace.events.start, t.trace.events.end + (MARGIN_NS + t.late_by)
    found: dict[int, list[int]] = {}
    of_any: list[int] = []
    for call in calls:
        stream = stream_of.get(call, -1)
        if stream not in lanes.task:
            of_any.append(call)
        elif (task := lanes.last(stream, int(start[call]))) >= 0 and lanes.end[task] <= latest[call]:
            found[call] = [task]
        else:
            found[call] = []
    of_any.sort(key=lambda call: int(start[call]))
    for call, tasks in zip(of_any, lanes.last_of_each(start[of_any]), strict=True):
        ended = tasks[lanes.end[tasks] <= latest[call]]
        num = MAX_AWAITED if re.search(_WHOLE_DEVICE, t.name(call)) else 1
        if len(ended) > num:
            ended = ended[np.sort(np.argsort(-lanes.end[ended], kind="stable")[:num])]
        found[call] = ended.tolist()
    return found


def recorded_events(t: Tables) -> Pairs:
    """Return (task, task) for each wait on an event that the file records."""
    events, lanes = t.trace.events, _Lanes(t)
    waits = rows_of(t.trace, Kind.SYNC)
    waits = waits[(events.awaits[waits] >= 0) & (events.cause[waits] >= 0)]
    if not len(waits):
        return [], []
    runtime = rows_of(t.trace, Kind.RUNTIME)
    record_of = dict(zip(events.correlation[runtime].tolist(), runtime.tolist(), strict=True))
    pairs: list[tuple[int, int]] = []  # the call that records the event, and the task that follows it
    for wait in waits.tolist():
        stream, record = int(events.stream[wait]), record_of.get(int(events.awaits[wait]), -1)
        if stream not in lanes.task or record < 0:
            continue
        at = int(np.searchsorted(lanes.begun[stream], events.start[events.cause[wait]]))
        if at < len(lanes.task[stream]):
            pairs.append((record, int(lanes.task[stream][at])))
    pairs.sort(key=lambda pair: int(events.start[pair[0]]))
    sources: list[int] = []
    targets: list[int] = []
    recorded = events.start[[record for record, _ in pairs]]
    for (_, target), last in zip(pairs, lanes.last_of_each(recorded), strict=True):
        before = last[t.tasks.stream[last] != t.tasks.stream[target]]
        before = before[lanes.end[before] <= t.tasks.start[target] + MARGIN_NS]
        if len(before):
            sources.append(int(before[lanes.end[before].argmax()]))
            targets.append(target)
    return sources, targets


def collective_inputs(t: Tables) -> tuple[Rows, Rows]:
    """Return (task, collective): a collective reads what was queued before it, so it follows the last such task.

    Process groups let their stream wait for the current one before each collective, by an event that few files record.
    Where some collective began before that task had ended, the program arranges its streams otherwise, and none is
    returned.
    """
    tasks = t.tasks
    queued = np.where(tasks.launch >= 0, t.trace.events.start[tasks.launch], QUEUED_BEFORE)
    computing = np.flatnonzero(~tasks.is_collective & ~tasks.is_copy & (tasks.launch >= 0))
    computing = computing[np.argsort(queued[computing], kind="stable")]
    mine = np.flatnonzero(tasks.is_collective & (tasks.launch >= 0))
    at = np.searchsorted(queued[computing], queued[mine]) - 1
    mine, source = mine[at >= 0], computing[at[at >= 0]]
    apart = tasks.stream[source] != tasks.stream[mine]
    mine, source = mine[apart], source[apart]
    if not (tasks.end[source] <= tasks.start[mine] + MARGIN_NS).all():
        return mine[:0], mine[:0]
    return source, mine


def inferred_events(t: Tables, late: Rows, allowed: Ints) -> tuple[Rows, Rows]:
    """Return (task, task) where a late task began right when one of another stream ended.

    ``allowed`` is when its own stream and its launch would have let each task begin.
    """
    tasks = t.tasks
    by_end = np.argsort(tasks.end, kind="stable")
    ended = tasks.end[by_end]
    sources, targets = [], []
    low = np.searchsorted(ended, np.maximum(tasks.start[late] - EVENT_NS, allowed[late]), side="right")
    high = np.searchsorted(ended, tasks.start[late] + MARGIN_NS, side="right")
    for task, first, last in zip(late.tolist(), low.tolist(), high.tolist(), strict=True):
        near = by_end[first:last]
        near = near[(tasks.stream[near] != tasks.stream[task]) & (tasks.start[near] < tasks.start[task])]
        if len(near):
            sources.append(int(near[-1]))
            targets.append(task)
    return np.array(sources, np.intp), np.array(targets, np.intp)


def room_given(t: Tables, late: Rows) -> tuple[Rows, Rows]:
    """Return (kernel, task) where a late task began in the last wave of a kernel that filled the device."""
    tasks = t.tasks
    grid = t.trace.events.grid[tasks.row]
    num_sms = max((device.num_sms for device in t.trace.devices), default=0)
    fills = np.flatnonzero(~tasks.is_copy & ~tasks.is_collective & ((grid < 0) | (grid >= num_sms)))
    wave = np.array((tasks.end - tasks.start)[fills] * LAST_WAVE, np.int64)
    sources, targets = [], []
    late = late[~tasks.is_copy[late]]
    reach = np.maximum.accumulate(tasks.end[fills]) if len(fills) else tasks.end[fills]
    first = np.searchsorted(reach, tasks.start[late], side="right")
    last = np.searchsorted(tasks.start[fills], tasks.start[late], side="left")
    for task, low, high in zip(late.tolist(), first.tolist(), last.tolist(), strict=True):
        running = fills[low:high]
        tail = tasks.end[running] - tasks.start[task]
        fits = (tail > 0) & (tail <= wave[low:high]) & (tasks.stream[running] != tasks.stream[task])
        if fits.any():
            sources.append(int(running[fits][tail[fits].argmin()]))
            targets.append(task)
    return np.array(sources, np.intp), np.array(targets, np.intp)
