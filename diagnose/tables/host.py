"""The host's side: which threads launch on the device, and which events enclose a given time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Mask, Rows
from diagnose.model.events import Kind, Trace
from diagnose.model.intervals import EMPTY, Intervals, among, contains, distinct, union
from diagnose.tables.names import CAPTURE_BEGIN, CAPTURE_END, GRAPH_CAPTURE, is_of, matching, rows_of

if TYPE_CHECKING:
    from diagnose.tables import Tables

# A thread counts as launching where it launched at least this share of its tasks.
MIN_LAUNCH_SHARE = 0.01
_BLOCK = 4096  # events at a time

_RowsAndStarts: TypeAlias = tuple[tuple[npt.NDArray[np.int32], ...], tuple[Ints, ...]]


class Layers(NamedTuple):
    """Events of one thread by depth of nesting: within a layer they do not overlap, layer 0 is outermost."""

    rows: tuple[npt.NDArray[np.int32], ...]
    start: tuple[Ints, ...]
    event_end: Ints  # column of Trace.events

    def at(self, time: int) -> list[int]:
        """Return the rows of the events open at ``time``, outermost first."""
        found: list[int] = []
        for rows, start in zip(self.rows, self.start, strict=True):
            i = int(start.searchsorted(time, side="right")) - 1
            if i < 0 or self.event_end[rows[i]] <= time:
                break
            found.append(int(rows[i]))
        return found

    def at_each(self, time: Ints) -> list[list[int]]:
        """Return, for each time, the rows of the events open then, outermost first."""
        # Few are looked up sooner one by one.
        if len(time) <= 4:
            return [self.at(one) for one in time.tolist()]
        found: list[list[int]] = [[] for _ in range(len(time))]
        pending = np.arange(len(time))
        for depth in range(len(self.rows)):
            rows = self.open_in(depth, time[pending])
            pending, rows = pending[rows >= 0], rows[rows >= 0]
            if not len(pending):
                break
            for i, row in zip(pending.tolist(), rows.tolist(), strict=True):
                found[i].append(row)
        return found

    def open_in(self, depth: int, time: Ints) -> Rows:
        """Return, for each time, the row open in layer ``depth``, -1 where none is."""
        found = np.full(len(time), -1, np.intp)
        if depth >= len(self.rows) or not len(time):
            return found
        i = np.searchsorted(self.start[depth], time, side="right") - 1
        row = self.rows[depth][np.maximum(i, 0)]
        inside = (i >= 0) & (self.event_end[row] > time)
        found[inside] = row[inside]
        return found


def layers(trace: Trace, rows: Rows, most: int = 64, *, deep: bool = False) -> Layers:
    """Sort one thread's events (in time order, longer first on ties) into at most ``most`` layers of nesting.

    A report shows no deeper nesting than 64.
    ``deep``: they are nested dozens deep, as Python's frames are; then they are counted, not peeled off one by one.
    """
    events = trace.events
    rest, start, end = rows.astype(np.int32), events.start[rows], events.end[rows]
    counted = _counted(rest, start, end, most) if deep else None
    return Layers(*(counted or _peeled(rest, start, end, most)), events.end)


def _peeled(rest: npt.NDArray[np.int32], start: Ints, end: Ints, most: int) -> _RowsAndStarts:
    """Take the outermost events away again and again: a pass for each layer."""
    out_rows: list[npt.NDArray[np.int32]] = []
    out_start: list[Ints] = []
    while len(rest) and len(out_rows) < most:
        outer = _outermost(start, end)
        out_rows.append(rest[outer])
        out_start.append(start[outer])
        inner = ~outer
        rest = rest[inner]  # one column after the other: there are as many rows as the host has events
        start = start[inner]
        end = end[inner]
    return tuple(out_rows), tuple(out_start)


def _counted(rows: npt.NDArray[np.int32], start: Ints, end: Ints, most: int) -> _RowsAndStarts | None:
    """Return the layers by how many events are open where each begins; None where two of one layer would overlap."""
    lasting = end > start  # others enclose nothing, also what begins with them
    depth = np.arange(len(start)) - np.searchsorted(np.sort(end[lasting], kind="stable"), start, side="right")
    depth -= np.cumsum(~lasting) - ~lasting
    layer = np.minimum(depth, most).astype(np.uint8)  # which sorts in one pass
    order = np.argsort(layer, kind="stable").astype(np.int32)
    layer, start = layer[order], start[order]
    if ((start[1:] < end[order][:-1]) & (layer[1:] == layer[:-1]) & (layer[1:] < most)).any():
        return None
    num = min(int(layer[-1]) + 1, most) if len(layer) else 0
    cuts = np.searchsorted(layer, np.arange(1, num + 1))
    return tuple(np.split(rows[order], cuts)[:num]), tuple(np.split(start, cuts)[:num])


def outermost(trace: Trace, rows: Rows) -> Rows:
    """Return those of one thread's events, in time order, longer first on ties, that lie in no other one."""
    found: Rows = rows[_outermost(trace.events.start[rows], trace.events.end[rows])]
    return found


def outermost_of_threads(trace: Trace, rows: Rows) -> Rows:
    """Return those of several threads' events that lie in no other one of their thread, in time order."""
    threads = trace.events.thread[rows]
    each = [outermost(trace, rows[threads == thread]) for thread in distinct(threads).tolist()]
    return np.sort(np.concatenate(each)) if each else rows


def _outermost(start: Ints, end: Ints) -> Mask:
    """Return which of a thread's events, in time order, lie in no other one."""
    reach = np.maximum.accumulate(end)
    outer = np.ones(len(start), bool)
    np.greater_equal(start[1:], reach[:-1], out=outer[1:])
    across = np.flatnonzero(~outer[1:] & (end[1:] > reach[:-1])) + 1  # one ends inside another that began later
    if len(across):
        group = np.cumsum(outer) - 1  # of events that follow each other without a pause
        found = np.zeros(group[-1] + 1, bool)
        found[group[across]] = True
        unclear = np.flatnonzero(found[group])
        outer[unclear] = _one_after_the_other(start[unclear], end[unclear])
    return outer


def _one_after_the_other(start: Ints, end: Ints) -> Mask:
    """Return which events are outermost where some overlap without one being inside the other.

    An optimizer's mark that ends a moment after its step would otherwise put the next step below this one, and each
    further step deeper.
    """
    following = np.maximum(np.searchsorted(start, end, side="left"), np.arange(1, len(start) + 1))
    outer, i = np.zeros(len(start), bool), 0
    while i < len(start):
        first, block = i, following[i : i + _BLOCK].tolist()  # a list of all would take six times the memory
        while i - first < len(block):
            outer[i] = True
            i = block[i - first]
    return outer


def launch_threads(trace: Trace, launch: npt.NDArray[np.int32]) -> tuple[int, ...]:
    """Return the threads that launched the given tasks, the busiest first."""
    rows = launch[launch >= 0]
    threads = trace.events.thread[rows]
    threads = threads[threads >= 0]
    if not len(threads):
        return ()
    counts = np.bincount(threads)
    order = np.argsort(counts)[::-1]
    return tuple(int(t) for t in order if counts[t] >= max(1, MIN_LAUNCH_SHARE * len(threads)))


def main_thread(trace: Trace, marked: int, launch_threads: tuple[int, ...]) -> int:
    """Return the thread that runs the training loop: the one with the step marks, else the one with most host time."""
    if marked >= 0:
        return marked
    rows = rows_of(trace, Kind.OP, Kind.ANNOTATION)
    threads = trace.events.thread[rows]
    if launch_threads:
        mine = among(threads, launch_threads)
        rows, threads = rows[mine], threads[mine]
    if not len(rows):
        return launch_threads[0] if launch_threads else -1
    weights = (trace.events.end - trace.events.start)[rows].astype(np.float64)
    return int(np.bincount(threads[threads >= 0], weights[threads >= 0]).argmax())


def host_rows(trace: Trace, thread: int, *kinds: Kind) -> Rows:
    """Return the rows of one thread of the given kinds, in time order."""
    mine = is_of(trace, *kinds)
    mine &= trace.events.thread == thread
    return np.flatnonzero(mine)


def intervals_of(trace: Trace, rows: Rows) -> Intervals:
    """Return the time that the given events cover together."""
    if not len(rows):
        return EMPTY
    return union((trace.events.start[rows], trace.events.end[rows]))


def work_layers(t: Tables) -> dict[int, Layers]:
    """Return operators, annotations and runtime calls by nesting, for each thread that matters."""
    kinds = (Kind.OP, Kind.ANNOTATION, Kind.RUNTIME)
    return {each: layers(t.trace, host_rows(t.trace, each, *kinds)) for each in t.threads}


def frame_layers(t: Tables) -> dict[int, Layers]:
    """Return Python frames by nesting, for each thread that matters; empty where stacks were not recorded."""
    return {each: layers(t.trace, host_rows(t.trace, each, Kind.PYTHON), deep=True) for each in t.threads}


def in_ops(t: Tables) -> Intervals:
    """Return when a thread that matters was inside an operator or a runtime call."""
    return t.covering(t.host_rows(Kind.OP, Kind.RUNTIME))


# Graphs that are captured: launches go into the graph then and do not run.


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
        mine = np.flatnonzero(events.thread[rows] == thread)
        inside[mine] = contains(captures_of(trace, thread), events.start[rows[mine]])
    return inside
