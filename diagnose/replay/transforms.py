"""Changes to a graph: plain functions from graph to graph, so that several are replayed together.

``remove_cause`` chooses the one that takes the cause of a finding away, whole or in part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Floats, Mask, Rows
from diagnose.model.diagnosis import Finding, Removal
from diagnose.model.events import Trace
from diagnose.model.intervals import Intervals, among, covered, distinct, union
from diagnose.model.limits import AT_ONCE_NS, CALL_NS
from diagnose.model.rules import HOST_WORK, Cause
from diagnose.replay.graph import Edge, Graph, Transform, usual_delay
from diagnose.tables import Tables
from diagnose.tables.gaps import MIN_DELAYS
from diagnose.tables.host_gaps import host_work
from diagnose.tables.syncs import waits_for_host_copies, whole_device_calls


def scale_kernels(graph: Graph, trace: Trace, pattern: str, factor: float) -> Graph:
    """Make the device tasks whose name the pattern finds take ``factor`` of their time."""
    named = re.compile(pattern)
    tasks = np.flatnonzero(graph.is_task)
    ids = trace.events.name[graph.row[tasks]]
    hit = {name for name in distinct(ids).tolist() if named.search(trace.names[name])}
    duration = graph.duration.copy()
    duration[tasks[among(ids, np.fromiter(hit, np.intp, len(hit)))]] *= factor
    return replace(graph, duration=duration)


def drop_waits(graph: Graph, calls: npt.NDArray[np.intp]) -> Graph:
    """Let the given blocking calls return without waiting for the device; they cost what such a call costs."""
    gone = (graph.kind == Edge.WAIT) & among(graph.row[graph.dst], calls)
    return graph.with_edges(~gone)


def scale_host(graph: Graph, intervals: Intervals, factor: float) -> Graph:
    """Make the host's work within the intervals (ns, sorted, disjoint) take ``factor`` of its time.

    Only work between points shrinks: a blocking call takes as long as what it waits for.
    """
    inside = covered(intervals, graph.start, graph.end)
    less = np.where(graph.is_task, 0.0, inside * (1 - factor))
    return replace(graph, duration=np.maximum(graph.duration - less, 0.0))


def typical_delays(graph: Graph, held_out_from: int | None = None) -> Graph:
    """Replace every measured delay by the usual one of the others of its kind: what is left is what the graph explains.

    Launches and waits are of the kind of their API where it has enough of them. With ``held_out_from`` (ns on the
    trace's clock) only nodes that ended later are changed, and the delays are those of the nodes before. What the begin
    of the window handed over, and calls that cost the host itself, stay as measured, and so does what is alone of its
    kind.
    """
    later = graph.end[graph.dst] > (-1 if held_out_from is None else held_out_from)
    learned = graph.binding if held_out_from is None else graph.binding & ~later
    delay = graph.delay.copy()
    for kind in (Edge.LAUNCH, Edge.STREAM, Edge.EVENT, Edge.INFERRED, Edge.WAIT, Edge.ROOM):
        mine = graph.kind == kind
        caller = graph.api[graph.src if kind == Edge.LAUNCH else graph.dst]
        by_api = kind in (Edge.LAUNCH, Edge.WAIT)
        for api in distinct(caller[mine]).tolist() if by_api else [None]:
            of_api = mine if api is None else mine & (caller == api)
            known = of_api & learned
            known = known if known.sum() >= MIN_DELAYS else mine & learned
            _replace_delays(graph, delay, np.flatnonzero(of_api & later), np.flatnonzero(known), kind)
    return replace(graph, delay=delay)


def _replace_delays(graph: Graph, delay: Floats, edges: Rows, known: Rows, kind: Edge) -> None:
    """Give each edge the usual delay of the known ones without itself; of many one makes no difference."""
    seen = graph.delay[known]
    floor = -np.inf if kind == Edge.ROOM else 0.0  # what gets room starts before the kernel that gave it ends
    delay[edges] = max(usual_delay(seen), floor) if len(seen) else delay[edges]
    # Of more delays one is a fiftieth of the mean at most.
    if len(known) <= 50:
        for edge in edges[among(edges, known)].tolist():
            others = seen[known != edge]
            delay[edge] = max(usual_delay(others), floor) if len(others) else graph.delay[edge]


def shorten_tasks(graph: Graph, rows: npt.NDArray[np.intp], less: npt.NDArray[np.float64]) -> Graph:
    """Make the device tasks of the given rows of the trace (sorted) shorter by so many ns each, at most to nothing."""
    tasks = np.flatnonzero(graph.is_task)
    at = np.minimum(np.searchsorted(rows, graph.row[tasks]), len(rows) - 1)
    hit = rows[at] == graph.row[tasks]
    duration = graph.duration.copy()
    duration[tasks[hit]] = np.maximum(duration[tasks[hit]] - less[at[hit]], 0.0)
    return replace(graph, duration=duration)


def scale_pauses(graph: Graph, rows: Rows, factor: float) -> Graph:
    """Make the pauses on a stream before the tasks of the given rows of the trace take ``factor`` of their time."""
    before = graph.is_task[graph.dst] & (graph.kind == Edge.STREAM)
    hit = before & among(graph.row[graph.dst], rows)
    return replace(graph, delay=np.where(hit, graph.delay * factor, graph.delay))


def shorten_calls(graph: Graph, calls: Rows, share: Floats) -> Graph:
    """Take a share of what each of the blocking calls (rows of the trace, sorted) costs beside what it waits for."""
    at = np.minimum(np.searchsorted(calls, graph.row[graph.dst]), len(calls) - 1)
    hit = (graph.kind == Edge.CALL) & (calls[at] == graph.row[graph.dst])
    return replace(graph, delay=np.where(hit, graph.delay * (1 - share[at]), graph.delay))


def shorten_pauses(graph: Graph, pauses: Intervals, fraction: float) -> Graph:
    """Take ``fraction`` of each pause away from what passes, beyond their order, before the task that ends it."""
    at = np.minimum(np.searchsorted(pauses.end, graph.start[graph.dst]), len(pauses.end) - 1)
    hit = graph.is_task[graph.dst] & (graph.kind != Edge.BEFORE) & (pauses.end[at] == graph.start[graph.dst])
    less = np.where(hit, fraction * (pauses.end - pauses.start)[at], 0.0)
    return replace(graph, delay=np.where(hit, np.maximum(graph.delay - less, 0.0), graph.delay))


def remove_cause(t: Tables, finding: Finding, cause: Cause, fraction: float) -> Transform | None:
    """Return the change that takes ``fraction`` (0 to 1) of a finding's cause away, None where no graph shows it.

    Host work, hidden under the device or not, and pauses shrink by the fraction; copies and collectives by that share
    of their exposed time; kernels by that share of what the finding counts as lost in them, with the host time that
    goes with them. A wait for the device is dropped whole: it cannot be halved.
    """
    key = ("remove cause", finding.rule, finding.lost_ns, cause, fraction, transfer_share(finding))
    if finding.without is not None and t.device_id >= 0:
        removal = finding.without
        return t.cached(key, lambda: _without_operators(t, removal, fraction))
    return t.cached(key, lambda: _without_cause(t, finding, cause, fraction))


def _without_cause(t: Tables, finding: Finding, cause: Cause, fraction: float) -> Transform | None:
    pieces = t.causes.pieces(finding.rule)
    if cause == "device-wait":
        return partial(drop_waits, calls=syncs_before(t, pieces)) if fraction > 0 else None
    if cause in HOST_WORK:
        intervals = union(pieces, host_work(t, cause, pieces)) if t.device_id >= 0 else pieces
        shrunk: Transform = partial(scale_host, intervals=intervals, factor=1 - fraction)
        # Calls that free memory wait for nothing either; a wait cannot be halved.
        frees_memory = cause == "allocation" and fraction > 0
        return (lambda graph: drop_waits(shrunk(graph), t.freeing_calls.calls)) if frees_memory else shrunk
    if t.device_id < 0:
        return partial(scale_host, intervals=pieces, factor=1 - fraction) if len(pieces.start) else None
    if cause == "pause" and len(pieces.start):
        return partial(shorten_pauses, pauses=pieces, fraction=fraction)
    if cause in ("collective", "copy"):
        return _of_exposed(t, cause, pieces, fraction * transfer_share(finding))
    return _of_kernels(t, finding, fraction)


def _without_operators(t: Tables, removal: Removal, fraction: float) -> Transform | None:
    """Return the change that takes ``fraction`` of operators away; their waits go whole, as none can be halved."""
    if not fraction:
        return None
    length = (t.tasks.end - t.tasks.start)[removal.tasks]
    whole = np.sort(t.tasks.row[removal.tasks[removal.spared_ns >= length]])
    rows, less = _sorted(t.tasks.row[removal.tasks], fraction * removal.spared_ns)

    def transform(graph: Graph) -> Graph:
        if len(rows):
            graph = scale_pauses(shorten_tasks(graph, rows, less), whole, 1 - fraction)
        if len(removal.waits):
            share = np.full(len(removal.waits), fraction)
            graph = shorten_calls(drop_waits(graph, removal.waits), removal.waits, share)
        return scale_host(graph, removal.host, 1 - fraction) if len(removal.host.start) else graph

    return transform


def syncs_before(t: Tables, pieces: Intervals) -> npt.NDArray[np.intp]:
    """Return the blocking calls that end in a piece or shortly before one, and others of the same names.

    A call of the same kind takes the host's lead also where the device idles only later. Waits for copies from the host
    are of a kind of their own, whatever the call's name is.
    """
    calls = t.blocking_calls
    ended = t.trace.events.end[calls]
    if not len(pieces.start):
        return calls[:0]
    at = np.searchsorted(pieces.end, ended)
    following = np.minimum(at, len(pieces.start) - 1)
    mine = (at < len(pieces.start)) & (pieces.start[following] - ended <= AT_ONCE_NS)
    names = t.trace.events.name[calls]
    for_copies = waits_for_host_copies(t, calls)
    same = among(names, names[mine]) & (for_copies == (2 * int(for_copies[mine].sum()) >= max(int(mine.sum()), 1)))
    found: npt.NDArray[np.intp] = calls[same]
    return found


def transfer_share(finding: Finding) -> float:
    """Return the share of a finding's time in which this rank does not wait for others: no change takes that away."""
    waiting = finding.facts.get("awaits_ranks")
    return 1 - waiting if isinstance(waiting, float) else 1.0


def _of_exposed(t: Tables, cause: Cause, pieces: Intervals, fraction: float) -> Transform:
    """Return the change of exposed collectives or copies; the call that stages a copy gets shorter with it."""
    communicates = cause == "collective"
    mine = t.tasks.is_collective if communicates else t.tasks.is_copy
    exposed = t.occupancy.exposed_communication if communicates else t.occupancy.exposed_copy
    alone = covered(exposed, t.tasks.start[mine], t.tasks.end[mine])
    rows, less = _sorted(t.tasks.row[mine], fraction * alone)
    if communicates:
        return partial(shorten_tasks, rows=rows, less=less)
    # The calls that queued the tasks, and the largest share of a task of each.
    launch, of_task = t.tasks.launch[mine], alone / np.maximum(t.tasks.end - t.tasks.start, 1)[mine]
    calls = distinct(launch[launch >= 0]).astype(np.intp)
    share = np.zeros(len(calls))
    np.maximum.at(share, np.searchsorted(calls, launch[launch >= 0]), of_task[launch >= 0])
    start, end = t.trace.events.start[calls], t.trace.events.end[calls]
    intervals = union(pieces, union((start, start + (share * (end - start)).astype(np.int64))))

    def transform(graph: Graph) -> Graph:
        shorter = shorten_tasks(graph, rows, less) if len(rows) else graph
        shorter = shorten_calls(shorter, calls, fraction * share) if len(calls) else shorter
        return scale_host(shorter, intervals, 1 - fraction) if len(intervals.start) else shorter

    return transform


def _of_kernels(t: Tables, finding: Finding, fraction: float) -> Transform | None:
    length = (t.tasks.end - t.tasks.start)[finding.tasks].astype(np.float64)
    if not length.sum():
        return None
    share = min(1.0, fraction * finding.lost_ns * t.steps.num / float(length.sum()))
    rows, less = _sorted(t.tasks.row[finding.tasks], share * length)
    return partial(shorten_tasks, rows=rows, less=less)


def _sorted(rows: npt.NDArray[np.intp], values: npt.NDArray[np.floating[Any]]) -> tuple[npt.NDArray[np.intp], Floats]:
    order = np.argsort(rows, kind="stable")
    return rows[order], np.asarray(values, np.float64)[order]


# Copies that run one step ahead on a stream of their own: what a prefetcher makes of a graph.


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
        # No stream of a trace has this number.
        duration[copies], lane[copies] = took, -2
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
        # What queuing a copy from pinned memory takes on the host.
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
