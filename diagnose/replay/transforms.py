"""Changes to a graph. Each is a plain function from graph to graph, so that several are replayed together."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Floats, Rows
from diagnose.model.events import Trace
from diagnose.model.intervals import Intervals, among, covered, distinct
from diagnose.replay.graph import Edge, Graph, usual_delay

MIN_KNOWN = 5  # delays of an API, for a usual one
MAX_LEFT_OUT = 50  # of more delays one is a fiftieth of the mean at most

__all__ = [
    "drop_waits",
    "scale_host",
    "scale_kernels",
    "shorten_calls",
    "shorten_pauses",
    "shorten_tasks",
    "typical_delays",
]


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
