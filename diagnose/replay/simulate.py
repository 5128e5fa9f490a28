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
    """Return when each node is ready and ends; takes about 0.01 s for 12,600 nodes.

    A plain loop over lists: levels are too narrow to gain from arrays, most hold one launch and one task. Nearly every
    node waits for one or two others, which stand in columns of their own. What a node lacks waits for the begin of the
    window, which stands in the first place of ``ends``, before the nodes.
    """
    num, first = len(graph), float(graph.start[0])
    order = np.argsort(graph.dst, kind="stable")
    dst, src, delay = graph.dst[order], graph.src[order] + 1, graph.delay[order]
    place = np.arange(len(dst)) - np.searchsorted(dst, dst)  # among the edges of a node
    one, two = (_column(num, dst, src, delay, place == i) for i in (0, 1))
    rest = (place > 1) | (delay < 0)  # where clocks are skewed an edge may end before the window begins
    more: list[list[tuple[int, float]] | None] = [None] * num
    for node, source, wait in zip(dst[rest].tolist(), src[rest].tolist(), delay[rest].tolist(), strict=True):
        more[node] = [*(more[node] or ()), (source, wait), (0, 0.0)]
    ready: list[float] = []
    ends = [first]
    columns = zip(*one, *two, graph.duration.tolist(), more, strict=True)
    for source, wait, other, other_wait, duration, others in columns:
        latest, allowed = ends[source] + wait, ends[other] + other_wait
        if latest < allowed:  # noqa: PLR1730  # max() takes longer than the rest of a turn
            latest = allowed
        if others is not None:
            latest = max(latest, *(ends[each] + needed for each, needed in others))
        ready.append(latest)
        ends.append(latest + duration)
    return Times(np.array(ready), np.array(ends[1:]))


def _column(
    num: int, dst: Rows, src: Rows, delay: npt.NDArray[np.float64], mine: Mask
) -> tuple[list[int], list[float]]:
    """Return the place and the delay of one edge of each node; a node without it waits for the begin of the window."""
    sources, delays = np.zeros(num, np.intp), np.zeros(num)
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
