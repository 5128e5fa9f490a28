"""The time from step to step in a replay: neither the first step's start-up nor the device's last tasks count."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diagnose.replay.graph import Graph, Times
from diagnose.tables import Tables

__all__ = ["owners", "period_ns"]

LEAST_STEPS = 3  # fewer leave no two ends of steps beside the first: the whole window counts then


def owners(t: Tables, graph: Graph) -> npt.NDArray[np.intp]:
    """Return the step that each node belongs to: the one in which it was queued."""
    began, cause = t.trace.events.start, t.trace.events.cause[np.maximum(graph.row, 0)]
    queued = np.where(graph.is_task, graph.start, graph.end)
    queued = np.where(graph.is_task & (cause >= 0), began[np.maximum(cause, 0)], queued)
    step = np.searchsorted(t.steps.end, queued, side="left")
    return np.minimum(step, t.steps.num - 1).astype(np.intp)


def period_ns(graph: Graph, times: Times, owner: npt.NDArray[np.intp]) -> float:
    """Return the mean time between the ends of steps, both done; of few steps the mean."""
    num = int(owner.max()) + 1 if len(owner) else 1
    if num < LEAST_STEPS:
        return times.window_ns / num
    done = np.full(num, float(graph.start[0]))
    np.maximum.at(done, owner, times.end)
    done = np.maximum.accumulate(done)
    return float(done[-1] - done[0]) / (num - 1)
