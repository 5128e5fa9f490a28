"""Calls in which the host waits for the device."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Ints, Mask, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, among, distinct, span, union
from diagnose.model.limits import AT_ONCE_NS, FEW
from diagnose.tables import Tables
from diagnose.tables.names import BLOCKING, FREEING, FROM_HOST, LAUNCH, TO_HOST, matching, rows_of

# How late the device's times are beside the host's, measured on what CUDA and HIP guarantee.
#
# A synchronisation of the device returns after all that was queued before it, a copy to pageable memory after itself,
# and the synchronisation of a stream behind such a copy after the copy. Where a task ends later than the call that
# waited for it returned, the clocks are apart by at least as much. They are no further apart than tasks begin after
# their launches, since no task begins before its own.

AGREE_NS = 2_000  # host and device agree to about a microsecond where the profiler converts their clocks well
MIN_SKEW_NS = 5_000  # less is what files round to, and what one record may be off by
_CLOCK_SKEW_WHOLE_DEVICE = re.compile(r"^(cuda|hip)DeviceSynchronize|^cuCtxSynchronize")
_STREAM = re.compile(r"^(cuda|hip|cu)StreamSynchronize")
_TO_PAGEABLE = re.compile(r"DtoH \(Device -> Pageable\)")


def late_by(t: Tables) -> int:
    """Return by how much device times are late at most, ns; 0 where no call returned before what it waited for."""
    tasks, events = t.tasks, t.trace.events
    linked = np.flatnonzero(tasks.launch >= 0)
    if t.device_id < 0 or not len(linked):
        return 0
    ended, returned = _awaited(t)
    late = ended - returned
    if not len(late) or late.max() <= MIN_SKEW_NS:
        return 0
    delay = events.start[tasks.row[linked]] - events.start[tasks.launch[linked]]
    # Of the launches, the quickest: times are rounded, and a few may be wrong.
    possible = int(np.sort(delay)[int(FEW * (len(delay) - 1))])
    late = late[(late > MIN_SKEW_NS) & (late <= possible)]
    return int(late.max()) if len(late) else 0


def _awaited(t: Tables) -> tuple[Ints, Ints]:
    """Return when tasks ended, and when the calls returned that waited for them."""
    tasks, events = t.tasks, t.trace.events
    linked = np.flatnonzero(tasks.launch >= 0)
    linked = linked[np.argsort(events.start[tasks.launch[linked]], kind="stable")]
    call, end = tasks.launch[linked], events.end[tasks.row[linked]]
    queued = events.start[call]
    latest = np.maximum.accumulate(end)
    whole = t.in_window(t.calls(_CLOCK_SKEW_WHOLE_DEVICE))
    before = np.searchsorted(queued, events.start[whole]) - 1
    known = before >= 0
    pageable = t.tasks_matching(_TO_PAGEABLE, linked)
    ended = [latest[before[known]], end[pageable]]
    returned = [events.end[whole[known]], events.end[call[pageable]]]
    to_host, streams = t.tasks_matching(TO_HOST, linked), t.in_window(t.calls(_STREAM))
    for thread in t.threads:
        own = np.flatnonzero(events.thread[call] == thread)
        waits = streams[events.thread[streams] == thread]
        last = np.searchsorted(queued[own], events.start[waits]) - 1
        waits, copy = waits[last >= 0], own[last[last >= 0]]
        behind = to_host[copy]
        ended.append(end[copy[behind]])
        returned.append(events.end[waits[behind]])
    return np.concatenate(ended).astype(np.int64), np.concatenate(returned).astype(np.int64)


_STAGED = re.compile(r"\(Pageable -> Device\)")
_NEED_NOT_WAIT = re.compile(r"\((Pinned -> Device|Device -> Pinned|Device -> Device)\)")
_QUEUES = re.compile(r"^(cuda|hip|cu)Memcpy\w*Async")
_WHOLE_DEVICE = r"(Device|Ctx)Synchronize|^cnrtSyncDevice$"


def blocking_calls(t: Tables) -> Rows:
    """Return the synchronisations, and the copy calls that returned only after their copy was done.

    A call that queues a copy of pinned memory or within the device waits for nothing: a short copy may still be over
    before it returns. A call that copies from pageable memory in parts waits until its stream is free, and returns when
    the last part is staged: while that part still moves. Where the stream was free it waited for nothing.
    """
    events = t.trace.events
    copies = rows_of(t.trace, Kind.MEMCPY)
    copies = copies[events.cause[copies] >= 0]
    call = events.cause[copies]
    staged = among(copies, matching(t.trace, (Kind.MEMCPY,), _STAGED))
    waited = events.end[call] >= events.end[copies] - AGREE_NS - t.late_by
    # When the stream of each copy had done what ran there before it; 0 where nothing did.
    tasks = rows_of(t.trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    tasks = tasks[np.lexsort((events.start[tasks], events.stream[tasks], events.device[tasks]))]
    one, two = tasks[:-1], tasks[1:]
    same = (events.stream[one] == events.stream[two]) & (events.device[one] == events.device[two])
    done = np.zeros(len(events.start), np.int64)
    done[two[same]] = events.end[one[same]]
    waited |= staged & (events.end[call] > events.start[copies] + AGREE_NS) & (done[copies] > events.start[call])
    waited &= among(events.thread[call], t.threads)
    queues = among(copies, matching(t.trace, (Kind.MEMCPY,), _NEED_NOT_WAIT))
    waited &= ~(queues & among(call, matching(t.trace, (Kind.RUNTIME,), _QUEUES)))
    return distinct(t.calls(BLOCKING), call[waited]).astype(np.intp)


class Frees(NamedTuple):
    """Calls that gave memory back and returned only when the device had done all that was queued before."""

    calls: Rows  # rows of the trace, in time order
    done: Ints  # when the device had; what follows is the call's own work


def freeing_calls(t: Tables) -> Frees:
    """Return the calls that free memory and wait for the device.

    One that returned while a task queued before it still ran did not wait: some drivers defer it.
    """
    events, tasks = t.trace.events, t.tasks
    calls = t.in_window(t.calls(FREEING))
    if t.device_id < 0 or not len(calls) or not len(tasks.row):
        return Frees(np.empty(0, np.intp), np.empty(0, np.int64))
    queued = np.where(tasks.launch >= 0, events.start[tasks.launch], tasks.start)
    order = np.argsort(queued, kind="stable")
    ended = np.maximum.accumulate(tasks.end[order])
    before = np.searchsorted(queued[order], events.start[calls]) - 1
    done = np.where(before >= 0, ended[np.maximum(before, 0)], events.start[calls])
    waited = done <= events.end[calls] + AGREE_NS + t.late_by
    calls, done = calls[waited], done[waited]
    return Frees(calls, np.clip(done, events.start[calls], events.end[calls]))


def whole_device_calls(t: Tables) -> Rows:
    """Return the calls that wait for all streams of the device."""
    calls = t.in_window(t.blocking_calls)
    whole = np.array([re.search(_WHOLE_DEVICE, t.name(call)) is not None for call in calls.tolist()], bool)
    return distinct(calls[whole], t.freeing_calls.calls).astype(np.intp)


def waits_for_host_copies(t: Tables, calls: Rows) -> Mask:
    """Return which blocking calls wait for a copy from the host that the same operator made."""
    events, tasks = t.trace.events, t.tasks
    copies = tasks.launch[t.tasks_matching(FROM_HOST) & (tasks.launch >= 0)]
    begun = np.sort(events.start[copies], kind="stable")
    innermost = [_operators(t, row)[-1:] or [row] for row in calls.tolist()]
    start: Ints = np.array([events.start[rows[0]] for rows in innermost], np.int64)
    found: Mask = np.searchsorted(begun, start) < np.searchsorted(begun, events.end[calls])
    return found


def reads_nothing(t: Tables, calls: Rows) -> Mask:
    """Return which blocking calls are synchronizations outside any operator, without a copy to the host before them.

    The copy must have been queued since the blocking call before: one of earlier has arrived.
    """
    events, tasks = t.trace.events, t.tasks
    copies = tasks.launch[t.tasks_matching(TO_HOST) & (tasks.launch >= 0)]
    queued = np.sort(events.start[copies], kind="stable")
    ended = np.sort(events.end[t.blocking_calls], kind="stable")
    before = np.searchsorted(ended, events.start[calls], side="right") - 1
    since = np.where(before >= 0, ended[np.maximum(before, 0)], t.steps.window[0])
    found: Mask = np.searchsorted(queued, since) == np.searchsorted(queued, events.start[calls])
    is_bare = ["Synchronize" in t.name(call) and not _operators(t, call, "") for call in calls.tolist()]
    found &= np.array(is_bare, bool)
    return found


def operators_around(t: Tables, calls: Rows) -> Intervals:
    """Return the outermost operators that make the blocking calls, such as ``aten::item``; the calls without one."""
    events = t.trace.events
    outer = np.array([(_operators(t, row) or [row])[0] for row in calls.tolist()], np.intp)
    return union((events.start[outer], events.end[outer]))


def _operators(t: Tables, call: int, prefix: str = "aten::") -> list[int]:
    """Return torch's own operators around a call, outermost first; other names may be a whole step's."""
    events = t.trace.events
    layers = t.work_layers.get(int(events.thread[call]))
    around = layers.at(int(events.start[call])) if layers else []
    return [row for row in around if events.kind[row] == Kind.OP and t.name(row).startswith(prefix)]


# Intervals in which the host launches without waiting for the device: what a CUDA graph can hold.

# To replay a graph takes 50 to 200 µs with its guards and its inputs' copies, as much as 10 launches of 5 to 20 µs.
MIN_GRAPH_LAUNCHES = 10


def sync_free(t: Tables) -> Intervals:
    """Return the intervals of the window between two blocking calls that hold launches enough for a graph.

    Without any blocking call that is the whole window, however little is launched in it.
    """
    events, calls = t.trace.events, t.in_window(t.blocking_calls)
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
    intervals = t.sync_free
    if not len(intervals.start):
        return np.zeros(len(time), bool)
    at = np.searchsorted(intervals.start, time, side="right") - 1
    found: Mask = (at >= 0) & (time <= intervals.end[np.maximum(at, 0)])
    return found


MIN_PENDING = 128  # tasks; a launch that takes long with fewer before it waits for something else


class FullQueue(NamedTuple):
    """Blocked launches, in time order."""

    calls: Rows  # rows of the trace
    freed_by: Rows  # the row of the device task whose end let the next one be taken out


def full_queue(t: Tables) -> FullQueue:
    """Return the launches of the window that waited for room in the queue."""
    none = np.empty(0, np.intp)
    if t.device_id < 0:
        return FullQueue(none, none)
    events = t.trace.events
    tasks = rows_of(t.trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    tasks = tasks[(events.device[tasks] == t.device_id) & (events.cause[tasks] >= 0)]
    launches = distinct(events.cause[tasks]).astype(np.intp)
    calls = t.in_window(launches[(events.end - events.start)[launches] >= AT_ONCE_NS])
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
    # Of the limit: what is pending at the end of such calls differs little.
    blocked = (pending >= max(MIN_PENDING, (1 - FEW) * pending.max())) & (at >= 0)
    # After a task ended the next one is taken out, and the launch returns.
    blocked &= events.end[calls] - events.end[freed_by] <= AT_ONCE_NS
    return FullQueue(calls[blocked], freed_by[blocked])


def _up_to(times: Ints, moments: Ints) -> Ints:
    """Return how many of the sorted times are no later than each moment."""
    return np.searchsorted(times, moments, side="right").astype(np.int64)
