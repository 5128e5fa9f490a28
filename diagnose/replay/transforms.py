"""Changes to a graph: plain functions from graph to graph, so that several are replayed together.

``remove_cause`` chooses the one that takes the cause of a finding away, whole or in part.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Floats, Rows
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Trace
from diagnose.model.intervals import Intervals, among, covered, distinct, union
from diagnose.model.rules import HOST_WORK, Cause
from diagnose.replay.graph import Edge, Graph, Transform, usual_delay
from diagnose.tables import Tables
from diagnose.tables.host_gaps import host_work
from diagnose.tables.syncs import RETURN_NS, waits_for_host_copies

__all__ = [
    "drop_waits",
    "remove_cause",
    "scale_host",
    "scale_kernels",
    "shorten_calls",
    "shorten_pauses",
    "shorten_tasks",
    "syncs_before",
    "transfer_share",
    "typical_delays",
]

MIN_KNOWN = 5  # delays of an API, for a usual one
MAX_LEFT_OUT = 50  # of more delays one is a fiftieth of the mean at most


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
            known = known if known.sum() >= MIN_KNOWN else mine & learned
            _replace_delays(graph, delay, np.flatnonzero(of_api & later), np.flatnonzero(known), kind)
    return replace(graph, delay=delay)


def _replace_delays(graph: Graph, delay: Floats, edges: Rows, known: Rows, kind: Edge) -> None:
    """Give each edge the usual delay of the known ones without itself; of many one makes no difference."""
    seen = graph.delay[known]
    floor = -np.inf if kind == Edge.ROOM else 0.0  # what gets room starts before the kernel that gave it ends
    delay[edges] = max(usual_delay(seen), floor) if len(seen) else delay[edges]
    if len(known) <= MAX_LEFT_OUT:
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
    of their exposed time; kernels by that share of what the finding counts as lost in them. A wait for the device is
    dropped whole: it cannot be halved.
    """
    key = ("remove cause", finding.rule, finding.lost_ns, cause, fraction, transfer_share(finding))
    return t.cached(key, lambda: _remove_cause(t, finding, cause, fraction))


def _remove_cause(t: Tables, finding: Finding, cause: Cause, fraction: float) -> Transform | None:
    rows = t.causes.of(finding.rule)
    pieces = Intervals(t.causes.start[rows], t.causes.end[rows])
    if cause == "device-wait":
        return partial(drop_waits, calls=syncs_before(t, pieces)) if fraction > 0 else None
    if cause in HOST_WORK:
        intervals = union(pieces, host_work(t, cause, pieces)) if t.device_id >= 0 else pieces
        shrunk: Transform = partial(scale_host, intervals=intervals, factor=1 - fraction)
        return _without_frees(t, shrunk) if cause == "allocation" and fraction > 0 else shrunk
    if t.device_id < 0:
        return partial(scale_host, intervals=pieces, factor=1 - fraction) if len(rows) else None
    if cause == "pause" and len(rows):
        return partial(shorten_pauses, pauses=pieces, fraction=fraction)
    if cause in ("collective", "copy"):
        return _of_exposed(t, cause, pieces, fraction * transfer_share(finding))
    return _of_kernels(t, finding, fraction)


def _without_frees(t: Tables, shrunk: Transform) -> Transform:
    """Return the change in which calls that free memory wait for nothing either; a wait cannot be halved."""
    frees = t.freeing_calls.calls
    return lambda graph: drop_waits(shrunk(graph), frees)


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
    mine = (at < len(pieces.start)) & (pieces.start[following] - ended <= RETURN_NS)
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
    calls, share = _calls_of(t, np.flatnonzero(mine), alone / np.maximum(t.tasks.end - t.tasks.start, 1)[mine])
    start, end = t.trace.events.start[calls], t.trace.events.end[calls]
    intervals = union(pieces, union((start, start + (share * (end - start)).astype(np.int64))))

    def transform(graph: Graph) -> Graph:
        shorter = shorten_tasks(graph, rows, less) if len(rows) else graph
        shorter = shorten_calls(shorter, calls, fraction * share) if len(calls) else shorter
        return scale_host(shorter, intervals, 1 - fraction) if len(intervals.start) else shorter

    return transform


def _calls_of(t: Tables, tasks: npt.NDArray[np.intp], share: Floats) -> tuple[npt.NDArray[np.intp], Floats]:
    """Return the calls that queued the tasks, sorted, and the largest share of a task of each."""
    launch = t.tasks.launch[tasks]
    calls = distinct(launch[launch >= 0]).astype(np.intp)
    largest = np.zeros(len(calls))
    np.maximum.at(largest, np.searchsorted(calls, launch[launch >= 0]), share[launch >= 0])
    return calls, largest


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
