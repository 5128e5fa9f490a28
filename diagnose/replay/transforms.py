"""Changes to a graph. Each is a plain function from graph to graph, so that several are replayed together."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from diagnose.model.events import Trace
from diagnose.model.intervals import Intervals, covered, distinct
from diagnose.replay.graph import Edge, Graph

__all__ = ["drop_waits", "scale_host", "scale_kernels", "shorten_pauses", "shorten_tasks", "typical_delays"]


def scale_kernels(graph: Graph, trace: Trace, pattern: str, factor: float) -> Graph:
    """Make the device tasks whose name the pattern finds take ``factor`` of their time."""
    named = re.compile(pattern)
    tasks = np.flatnonzero(graph.is_task)
    ids = trace.events.name[graph.row[tasks]]
    hit = {name for name in distinct(ids).tolist() if named.search(trace.names[name])}
    duration = graph.duration.copy()
    duration[tasks[np.isin(ids, list(hit))]] *= factor
    return replace(graph, duration=duration)


def drop_waits(graph: Graph, calls: npt.NDArray[np.intp]) -> Graph:
    """Let the given blocking calls return without waiting for the device; they cost what such a call costs."""
    gone = (graph.kind == Edge.WAIT) & np.isin(graph.row[graph.dst], calls)
    kept = ~gone
    return replace(
        graph,
        src=graph.src[kept],
        dst=graph.dst[kept],
        kind=graph.kind[kept],
        delay=graph.delay[kept],
        binding=graph.binding[kept],
    )


def scale_host(graph: Graph, stretches: Intervals, factor: float) -> Graph:
    """Make the host's work within the stretches (ns, sorted, disjoint) take ``factor`` of its time.

    Only work between points shrinks: a blocking call takes as long as what it waits for.
    """
    inside = covered(stretches, graph.start, graph.end)
    less = np.where(graph.is_task, 0.0, inside * (1 - factor))
    return replace(graph, duration=np.maximum(graph.duration - less, 0.0))


def typical_delays(graph: Graph, held_out_from: int | None = None) -> Graph:
    """Replace every measured delay by the median of its kind: what is left of the truth is what the graph explains.

    With ``held_out_from`` (ns on the trace's clock) only nodes that ended later are changed, and the medians are
    those of the nodes before. What the begin of the window handed over, and calls that cost the host itself, stay
    as measured.
    """
    later = graph.end[graph.dst] > (-1 if held_out_from is None else held_out_from)
    learned = graph.binding if held_out_from is None else graph.binding & ~later
    delay = graph.delay.copy()
    for kind in (Edge.LAUNCH, Edge.STREAM, Edge.EVENT, Edge.INFERRED, Edge.WAIT, Edge.ROOM):
        mine = graph.kind == kind
        seen = graph.delay[mine & learned]
        usual = float(np.percentile(seen, 50, method="lower")) if len(seen) else 0.0
        usual = usual if kind == Edge.ROOM else max(0.0, usual)  # a task that gets room starts before its kernel ends
        delay[mine & later] = usual
    return replace(graph, delay=delay)


def shorten_tasks(graph: Graph, rows: npt.NDArray[np.intp], less: npt.NDArray[np.float64]) -> Graph:
    """Make the device tasks of the given rows of the trace (sorted) shorter by so many ns each, at most to nothing."""
    tasks = np.flatnonzero(graph.is_task)
    at = np.minimum(np.searchsorted(rows, graph.row[tasks]), len(rows) - 1)
    hit = rows[at] == graph.row[tasks]
    duration = graph.duration.copy()
    duration[tasks[hit]] = np.maximum(duration[tasks[hit]] - less[at[hit]], 0.0)
    return replace(graph, duration=duration)


def shorten_pauses(graph: Graph, pauses: Intervals, fraction: float) -> Graph:
    """Take ``fraction`` of each pause away from what passes, beyond their order, before the task that ends it."""
    at = np.minimum(np.searchsorted(pauses.end, graph.start[graph.dst]), len(pauses.end) - 1)
    hit = graph.is_task[graph.dst] & (graph.kind != Edge.BEFORE) & (pauses.end[at] == graph.start[graph.dst])
    less = np.where(hit, fraction * (pauses.end - pauses.start)[at], 0.0)
    return replace(graph, delay=np.where(hit, np.maximum(graph.delay - less, 0.0), graph.delay))
