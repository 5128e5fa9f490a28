"""The critical path: the chain of nodes that the length of the window follows from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.replay.graph import Graph, Times
from diagnose.tables import Tables

__all__ = ["CriticalPath", "critical_path", "shares"]


class CriticalPath(NamedTuple):
    """The chain in time order; columns are parallel. What they sum to is the length of the window."""

    node: npt.NDArray[np.intp]
    duration_ns: npt.NDArray[np.float64]  # of the node itself
    delay_ns: npt.NDArray[np.float64]  # on the edge by which the chain came to it


def critical_path(graph: Graph, times: Times) -> CriticalPath:
    """Return the chain of nodes, each waiting for the one before it, that ends with the window."""
    allowed = times.end[graph.src] + graph.delay
    order = np.lexsort((allowed, graph.dst))
    last = np.searchsorted(graph.dst[order], np.arange(len(graph)), side="right") - 1
    nodes: list[int] = []
    delays: list[float] = []
    node = int(times.end.argmax())
    while node > 0:
        edge = int(order[last[node]])
        nodes.append(node)
        # Beyond the edge's own delay nothing passes, except where clocks are skewed at the begin of the window.
        delays.append(float(times.ready[node] - times.end[graph.src[edge]]))
        node = int(graph.src[edge])
    chain = np.array(nodes[::-1], np.intp)
    return CriticalPath(chain, graph.duration[chain], np.array(delays[::-1], np.float64))


def shares(t: Tables, graph: Graph, path: CriticalPath) -> Mapping[str, float]:
    """Return what the path consists of: shares of host, compute, communication, copy and delay, which sum to 1."""
    length = float(path.duration_ns.sum() + path.delay_ns.sum())
    if length <= 0:
        return {}
    rows = graph.row[path.node]
    on_device = graph.is_task[path.node]
    kinds = {
        "communication": on_device & np.isin(rows, t.tasks.row[t.tasks.is_collective]),
        "copy": on_device & np.isin(rows, t.tasks.row[t.tasks.is_copy]),
        "host": ~on_device,
    }
    kinds["compute"] = on_device & ~kinds["communication"] & ~kinds["copy"]
    found = {kind: float(path.duration_ns[mine].sum()) / length for kind, mine in kinds.items()}
    return found | {"delay": float(path.delay_ns.sum()) / length}
