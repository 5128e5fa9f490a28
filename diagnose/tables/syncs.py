"""Calls in which the host waits for the device."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Ints, Mask, Rows
from diagnose.model.events import Kind
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import Intervals, among, distinct, union
from diagnose.tables import Tables, host_table, shared_table
from diagnose.tables.clock_skew import AGREE_NS, late_by
from diagnose.tables.names import BLOCKING, FREEING, FROM_HOST, TO_HOST, matching, rows_of
from diagnose.text.patterns import lazy_pattern

__all__ = [
    "RETURN_NS",
    "Frees",
    "blocking_calls",
    "freeing_calls",
    "operators_around",
    "reads_nothing",
    "waits_for_host_copies",
    "whole_device_calls",
]

RETURN_NS = 50_000  # a blocking call returns within this of the device having drained

_STAGED = lazy_pattern(r"\(Pageable -> Device\)")
_NEED_NOT_WAIT = lazy_pattern(r"\((Pinned -> Device|Device -> Pinned|Device -> Device)\)")
_QUEUES = lazy_pattern(r"^(cuda|hip|cu)Memcpy\w*Async")
_WHOLE_DEVICE = lazy_pattern(r"(Device|Ctx)Synchronize|^cnrtSyncDevice$")


@host_table
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
    waited = events.end[call] >= events.end[copies] - AGREE_NS - late_by(t)
    waited |= staged & (events.end[call] > events.start[copies] + AGREE_NS) & (_free(t, copies) > events.start[call])
    waited &= among(events.thread[call], t.threads)
    queues = among(copies, matching(t.trace, (Kind.MEMCPY,), _NEED_NOT_WAIT))
    waited &= ~(queues & among(call, matching(t.trace, (Kind.RUNTIME,), _QUEUES)))
    return distinct(t.calls(BLOCKING), call[waited]).astype(np.intp)


def _free(t: Tables, copies: Rows) -> Ints:
    """Return when the stream of each copy had done what ran there before it; 0 where nothing did."""
    events, tasks = t.trace.events, rows_of(t.trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    tasks = tasks[np.lexsort((events.start[tasks], events.stream[tasks], events.device[tasks]))]
    one, two = tasks[:-1], tasks[1:]
    same = (events.stream[one] == events.stream[two]) & (events.device[one] == events.device[two])
    done = np.zeros(len(events.start), np.int64)
    done[two[same]] = events.end[one[same]]
    return done[copies]


class Frees(NamedTuple):
    """Calls that gave memory back and returned only when the device had done all that was queued before."""

    calls: Rows  # rows of the trace, in time order
    done: Ints  # when the device had; what follows is the call's own work


@shared_table
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
    waited = done <= events.end[calls] + AGREE_NS + late_by(t)
    calls, done = calls[waited], done[waited]
    return Frees(calls, np.clip(done, events.start[calls], events.end[calls]))


def whole_device_calls(t: Tables) -> Rows:
    """Return the calls that wait for all streams of the device."""
    calls = t.in_window(blocking_calls(t))
    whole = np.array([_WHOLE_DEVICE.search(t.name(call)) is not None for call in calls.tolist()], bool)
    return distinct(calls[whole], freeing_calls(t).calls).astype(np.intp)


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
    ended = np.sort(events.end[blocking_calls(t)], kind="stable")
    before = np.searchsorted(ended, events.start[calls], side="right") - 1
    since = np.where(before >= 0, ended[np.maximum(before, 0)], t.steps.window[0])
    found: Mask = np.searchsorted(queued, since) == np.searchsorted(queued, events.start[calls])
    found &= np.array([_is_bare(t, row) for row in calls.tolist()], bool)
    return found


def _is_bare(t: Tables, call: int) -> bool:
    events = t.trace.events
    layers = t.work_layers.get(int(events.thread[call]))
    around = layers.at(int(events.start[call])) if layers else []
    return "Synchronize" in t.name(call) and not any(events.kind[row] == Kind.OP for row in around)


def operators_around(t: Tables, calls: Rows) -> Intervals:
    """Return the outermost operators that make the blocking calls, such as ``aten::item``; the calls without one."""
    events = t.trace.events
    outer = np.array([(_operators(t, row) or [row])[0] for row in calls.tolist()], np.intp)
    return union((events.start[outer], events.end[outer]))


def _operators(t: Tables, call: int) -> list[int]:
    """Return torch's own operators around a call, outermost first; other names may be a whole step's."""
    events = t.trace.events
    layers = t.work_layers.get(int(events.thread[call]))
    around = layers.at(int(events.start[call])) if layers else []
    return [row for row in around if events.kind[row] == Kind.OP and t.name(row).startswith("aten::")]
