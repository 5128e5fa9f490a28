"""Copies that run one step ahead on a stream of their own: what a prefetcher makes of a graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Mask, Rows
from diagnose.model.intervals import Intervals, among, distinct
from diagnose.replay.graph import Edge, Graph
from diagnose.replay.transforms import scale_host
from diagnose.tables import Tables
from diagnose.tables.syncs import whole_device_calls

__all__ = ["CopiesAhead"]

COPY_LANE = -2  # no stream of a trace has it
CALL_NS = 10_000  # what queuing a copy from pinned memory takes on the host


@dataclass(frozen=True, eq=False, slots=True)
class CopiesAhead:
    """A transform: the copies of the given tasks serve the step after their own, in order, on a stream of their own.

    What used a copy waits for the one that was queued a step before; the first step finds its batch there. The link
    stays one: a step is never shorter than its copies. The calls that queue them return at once.
    """

    t: Tables
    tasks: Rows  # rows of Tasks
    duration_ns: npt.NDArray[np.float64]  # of each copy then
    is_ahead: bool = True  # False: the copies stay where they are, and only no call waits for them

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with the copies ahead."""
        copies, took = self._nodes(graph)
        if not len(copies):
            return graph
        if not self.is_ahead:
            graph = self._unblocked(graph)
            duration = graph.duration.copy()
            duration[copies] = took
            return replace(graph, duration=duration)
        is_copy = np.zeros(len(graph), bool)
        is_copy[copies] = True
        graph = _without_copies(self._unblocked(graph), is_copy)
        duration, lane = graph.duration.copy(), graph.lane.copy()
        duration[copies], lane[copies] = took, COPY_LANE
        served = _served(replace(graph, duration=duration, lane=lane), copies, is_copy, self._steps(graph, copies))
        return self._awaited(served, copies)

    def _nodes(self, graph: Graph) -> tuple[Rows, npt.NDArray[np.float64]]:
        """Return the copies' nodes in their order, and what each takes."""
        rows = self.t.tasks.row[self.tasks]
        order = np.argsort(rows, kind="stable")
        nodes = np.flatnonzero(graph.is_task)
        at = np.minimum(np.searchsorted(rows[order], graph.row[nodes]), max(len(rows) - 1, 0))
        mine = rows[order][at] == graph.row[nodes] if len(rows) else np.zeros(len(nodes), bool)
        return nodes[mine], self.duration_ns[order][at[mine]] if len(rows) else np.empty(0)

    def _unblocked(self, graph: Graph) -> Graph:
        """Return the graph in which the calls that queue the copies return at once."""
        events, calls = self.t.trace.events, self.t.tasks.launch[self.tasks]
        calls = distinct(calls[calls >= 0]).astype(np.intp)
        own = among(graph.row[graph.dst], calls) & ~graph.is_task[graph.dst]
        kept = ~(own & (graph.kind == Edge.WAIT))
        delay = np.where(own & (graph.kind == Edge.CALL), np.minimum(graph.delay, CALL_NS), graph.delay)
        graph = replace(graph.with_edges(kept), delay=delay[kept])
        start, end = np.minimum(events.start[calls] + CALL_NS, events.end[calls]), events.end[calls]
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order]) if len(order) else end
        apart = np.maximum(start[1:], end[:-1]) if len(order) else start
        return scale_host(graph, Intervals(np.concatenate([start[:1], apart]), end), 0.0)

    def _awaited(self, graph: Graph, copies: Rows) -> Graph:
        """Return the graph in which calls that wait for the whole device wait for the copies queued before them too."""
        events = self.t.trace.events
        calls = whole_device_calls(self.t)
        waits = np.flatnonzero((graph.kind == Edge.CALL) & among(graph.row[graph.dst], calls))
        nodes = graph.dst[waits]
        launch = events.cause[graph.row[copies]]
        queued = np.where(launch >= 0, events.start[np.maximum(launch, 0)], graph.start[copies])
        before = np.searchsorted(np.maximum.accumulate(queued), events.start[graph.row[nodes]]) - 1
        mine = before >= 0
        mine[mine] = copies[before[mine]] < nodes[mine]
        return _adding_edges(graph, copies[before[mine]], nodes[mine], Edge.WAIT, graph.delay[waits[mine]])

    def _steps(self, graph: Graph, copies: Rows) -> Rows:
        """Return the step in which each copy was queued."""
        began = self.t.trace.events.cause[graph.row[copies]]
        queued = np.where(began >= 0, self.t.trace.events.start[np.maximum(began, 0)], graph.start[copies])
        return np.searchsorted(self.t.steps.end, queued, side="left").astype(np.intp)


def _adding_edges(
    graph: Graph, src: Rows, dst: Rows, kind: Edge, delay: npt.NDArray[np.float64] | None = None
) -> Graph:
    none = np.zeros(len(src))
    return replace(
        graph,
        src=np.concatenate([graph.src, src]),
        dst=np.concatenate([graph.dst, dst]),
        kind=np.concatenate([graph.kind, np.full(len(src), kind, np.int8)]),
        delay=np.concatenate([graph.delay, none if delay is None else delay]),
        binding=np.concatenate([graph.binding, none.astype(bool)]),
    )


def _without_copies(graph: Graph, is_copy: Mask) -> Graph:
    """Return the graph in which the copies hold up no order on their streams; what they served stays behind them.

    A copy keeps its launch alone. What followed it on its stream follows what ran there before, as late as both were.
    """
    last = _last_before(graph, is_copy)
    kept = ~is_copy[graph.dst] | (graph.kind == Edge.LAUNCH)
    behind = is_copy[graph.src] & ~is_copy[graph.dst]
    bypass = np.flatnonzero(behind & (graph.kind == Edge.STREAM) & (last[graph.dst] >= 0))
    awaited = np.flatnonzero(behind & (graph.kind == Edge.WAIT) & (last[graph.src] >= 0))
    src = np.concatenate([last[graph.dst[bypass]], last[graph.src[awaited]]]).astype(np.intp)
    dst = np.concatenate([graph.dst[bypass], graph.dst[awaited]]).astype(np.intp)
    kept &= ~(behind & (graph.kind == Edge.WAIT))
    on_stream = graph.kind == Edge.STREAM
    late = np.zeros(len(graph))  # what passed between the tasks of a stream before a run of copies ended
    for edge in np.flatnonzero(on_stream & is_copy[graph.dst])[
        np.argsort(graph.dst[on_stream & is_copy[graph.dst]], kind="stable")
    ].tolist():
        source, copy = graph.src[edge], graph.dst[edge]
        late[copy] = graph.delay[edge] + (late[source] if is_copy[source] else 0.0)
    delay = np.concatenate([graph.delay[bypass] + late[graph.src[bypass]], np.zeros(len(awaited))])
    return _adding_edges(graph.with_edges(kept), src, dst, Edge.STREAM, delay)


def _last_before(graph: Graph, is_copy: Mask) -> Rows:
    """Return, for each task, the one before it on its stream that is no copy; -1 for none, and for other nodes."""
    tasks = np.flatnonzero(graph.is_task)
    order = tasks[np.argsort(graph.lane[tasks], kind="stable")]
    lane, place = graph.lane[order], np.arange(len(order))
    last = np.full(len(graph), -1, np.intp)
    other = np.append(-1, np.maximum.accumulate(np.where(is_copy[order], -1, place))[:-1])
    own = other >= np.searchsorted(lane, lane)
    last[order[own]] = order[other[own]]
    return last


def _served(graph: Graph, copies: Rows, is_copy: Mask, step: Rows) -> Graph:
    """Return the graph in which what used a copy waits for the one of the step before, and copies run in order."""
    place = np.full(len(graph), -1, np.intp)
    place[copies] = np.arange(len(copies))
    first = np.searchsorted(step, step, side="left")
    earlier = np.searchsorted(step, step - 1, side="left")  # the first copy of the step before
    instead = np.minimum(earlier + np.arange(len(copies)) - first, first - 1)
    use = np.flatnonzero(is_copy[graph.src] & ~is_copy[graph.dst])
    serving = instead[place[graph.src[use]]]
    src = graph.src.copy()
    src[use] = copies[np.maximum(serving, 0)]
    kept = np.ones(len(src), bool)
    kept[use[serving < 0]] = False
    return _adding_edges(replace(graph, src=src).with_edges(kept), copies[:-1], copies[1:], Edge.STREAM)
