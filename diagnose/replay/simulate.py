"""The replay: one pass over the nodes in their order, and the time from step to step in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.replay.contract import Contraction, Offsets, contract
from diagnose.replay.graph import Graph, Times
from diagnose.tables import Tables

__all__ = ["owners", "period_ns", "simulate"]

_BLOCK = 4096  # junctions whose columns are lists at a time: as lists they take seven times the memory
MIN_STEPS = 3  # fewer leave no two ends of steps beside the first: the whole window counts then


def simulate(graph: Graph) -> Times:
    """Return when each node ends; takes about 0.001 s for 10,000 nodes of which a tenth are junctions.

    The junctions of the graph are gone through in a plain loop over lists. Nearly every one waits for one or two nodes,
    each of which follows one or two junctions before it, in columns of their own. None begins before the window.
    """
    shared = graph.of_edges(contract, first_only=True)
    contraction = shared if shared.holds(graph) else contract(graph)
    late, begin = contraction.offsets(graph), float(graph.start[0])
    ends = [begin]
    add = ends.append
    more = _others(graph, contraction, late)
    for first in range(1, len(contraction.junctions), _BLOCK):
        nodes = contraction.junctions[first : first + _BLOCK]
        waited_for = (
            column for edge in graph.incoming().pair for column in _terms(graph, contraction, late, edge[nodes])
        )
        for a, a_late, b, b_late, c, c_late, d, d_late, duration, others in zip(
            *waited_for, graph.duration[nodes].tolist(), more[first : first + _BLOCK], strict=True
        ):
            latest = max(begin, ends[a] + a_late, ends[b] + b_late, ends[c] + c_late, ends[d] + d_late)
            if others is not None:
                latest = max(latest, *(ends[each] + needed for each, needed in others))
            add(latest + duration)
    at = np.array(ends)
    return Times(np.maximum(at[contraction.one] + late.one, at[contraction.other] + late.other))


def _terms(
    graph: Graph, contraction: Contraction, late: Offsets, edges: npt.NDArray[np.integer]
) -> tuple[list[Any], ...]:
    """Return the junctions that the edges begin to follow, one and another each, and how much later each edge ends.

    An edge that a node lacks, one beyond all, begins with the window.
    """
    lacking = edges >= len(graph.src)
    edges = np.where(lacking, 0, edges)
    source, delay = np.where(lacking, 0, graph.src[edges]), np.where(lacking, 0.0, graph.delay[edges])
    one, other = late.one[source] + delay, late.other[source] + delay
    return contraction.one[source].tolist(), one.tolist(), contraction.other[source].tolist(), other.tolist()


def _others(graph: Graph, contraction: Contraction, late: Offsets) -> list[list[tuple[int, float]] | None]:
    """Return what a junction waits for beside its first two edges."""
    more: list[list[tuple[int, float]] | None] = [None] * len(contraction.junctions)
    edges = graph.incoming().further
    one, one_late, other, other_late = _terms(graph, contraction, late, edges)
    for place, *terms in zip(contraction.one[graph.dst[edges]].tolist(), one, one_late, other, other_late, strict=True):
        more[place] = [*(more[place] or []), (terms[0], terms[1]), (terms[2], terms[3])]
    return more


def owners(t: Tables, graph: Graph) -> npt.NDArray[np.intp]:
    """Return the step that each node belongs to: the one in which it was queued."""
    began, cause = t.trace.events.start, t.trace.events.cause[np.maximum(graph.row, 0)]
    queued = np.where(graph.is_task, graph.start, graph.end)
    queued = np.where(graph.is_task & (cause >= 0), began[np.maximum(cause, 0)], queued)
    step = np.searchsorted(t.steps.end, queued, side="left")
    return np.minimum(step, t.steps.num - 1).astype(np.intp)


def period_ns(graph: Graph, times: Times, owner: npt.NDArray[np.intp]) -> float:
    """Return the mean time between the ends of steps, host and device done; of few steps the mean.

    So neither the first step's start-up nor the device's last tasks count.
    """
    num = int(owner.max()) + 1 if len(owner) else 1
    if num < MIN_STEPS:
        return times.window_ns / num
    done = np.full(num, float(graph.start[0]))
    np.maximum.at(done, owner, times.end)
    done = np.maximum.accumulate(done)
    return float(done[-1] - done[0]) / (num - 1)
