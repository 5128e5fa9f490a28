"""The replay: one pass over the nodes in their order, and the time from step to step in it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Mask, Rows
from diagnose.replay.graph import Graph, Times
from diagnose.tables import Tables

__all__ = ["owners", "period_ns", "simulate"]

MIN_STEPS = 3  # fewer leave no two ends of steps beside the first: the whole window counts then


def simulate(graph: Graph) -> Times:
    """Return when each node is ready and ends; takes about 0.012 s for 12,600 nodes.

    A plain loop over lists: levels are too narrow to gain from arrays, most hold one launch and one task. Nearly every
    node waits for one or two others, which stand in columns of their own.
    """
    num = len(graph)
    order = np.argsort(graph.dst, kind="stable")
    dst, src, delay = graph.dst[order], graph.src[order], graph.delay[order]
    place = np.arange(len(dst)) - np.searchsorted(dst, dst)  # among the edges of a node
    one, two = (_column(num, dst, src, delay, place == i) for i in (0, 1))
    more: dict[int, list[tuple[int, float]]] = {}
    rest = place > 1
    for node, source, wait in zip(dst[rest].tolist(), src[rest].tolist(), delay[rest].tolist(), strict=True):
        more.setdefault(node, []).append((source, wait))
    first = float(graph.start[0])
    ready, end = [], [first] * num
    columns = zip(*one, *two, graph.duration.tolist(), strict=True)
    for node, (source, wait, other, other_wait, duration) in enumerate(columns):
        latest = end[source] + wait
        if (allowed := end[other] + other_wait) > latest:
            latest = allowed
        if latest < first:  # noqa: PLR1730  # max() takes longer than all the rest of a turn
            latest = first
        if node in more:
            latest = max(latest, *(end[source] + wait for source, wait in more[node]))
        ready.append(latest)
        end[node] = latest + duration
    return Times(np.array(ready), np.array(end))


def _column(
    num: int, dst: Rows, src: Rows, delay: npt.NDArray[np.float64], mine: Mask
) -> tuple[list[int], list[float]]:
    """Return the source and the delay of one edge of each node; a node without it waits for nothing."""
    sources, delays = np.zeros(num, np.intp), np.full(num, -np.inf)
    sources[dst[mine]], delays[dst[mine]] = src[mine], delay[mine]
    return sources.tolist(), delays.tolist()


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
