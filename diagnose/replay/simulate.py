"""The replay: one pass over the nodes in their order."""

from __future__ import annotations

import numpy as np

from diagnose.replay.graph import Graph, Times

__all__ = ["simulate"]


def simulate(graph: Graph) -> Times:
    """Return when each node is ready and ends; takes about 0.025 s for 45,000 nodes.

    A plain loop over lists: levels are too narrow to gain from arrays, most hold one launch and one task.
    """
    num = len(graph)
    order = np.argsort(graph.dst, kind="stable")
    bounds = np.searchsorted(graph.dst[order], np.arange(num + 1))
    sources, delays = graph.src[order].tolist(), graph.delay[order].tolist()
    durations = graph.duration.tolist()
    first = float(graph.start[0])
    ready, end = [first] * num, [first] * num
    lower = 0
    for node, upper in enumerate(bounds[1:].tolist()):
        latest = first
        for edge in range(lower, upper):
            allowed = end[sources[edge]] + delays[edge]
            latest = max(latest, allowed)
        lower = upper
        ready[node] = latest
        end[node] = latest + durations[node]
    return Times(np.array(ready), np.array(end))
