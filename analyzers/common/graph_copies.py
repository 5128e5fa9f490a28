"""Copies around the launches of CUDA graphs: of what a graph reads into its buffers, of what it wrote out of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Mask, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import among, distinct, grouped
from diagnose.tables import Tables

__all__ = ["CASTS", "graph_copies"]

MIN_COPIES = 8  # right before or behind one launch: a batch has a few tensors, parameters and outputs are many
_COPY_OPS = frozenset({"aten::copy_", "aten::_foreach_copy_"})
_FILLS = "aten::fill_"  # before a replay torch writes the seed and the offset of random numbers
CASTS = re.compile(r"LoadWithCast|StoreWithCast")


def graph_copies(t: Tables, free: Mask) -> Rows:
    """Return the copies within the device that a thread queues back to back with the launch of a graph.

    A graph reads and writes the memory that it was captured with. What lies elsewhere is copied into it before each
    launch, and what must outlive the next launch is copied out.
    """
    nodes = t.graph_nodes
    if not nodes.any():
        return np.zeros(0, np.intp)
    launches, first, _ = grouped(t.tasks.launch)
    launches, first = launches[launches >= 0], first[launches >= 0]
    names = [t.trace.names[n] if n >= 0 else "" for n in _operator_names(t)[first].tolist()]
    is_graph, is_copy = nodes[first], (free & _within_device(t))[first]
    is_copy &= np.array([name in _COPY_OPS or not name for name in names], bool)
    counts = np.array([name != _FILLS for name in names], bool) | is_graph
    events, found = t.trace.events, list[npt.NDArray[np.integer[Any]]]()
    for thread in distinct(events.thread[launches[is_graph]]).tolist():
        mine = np.flatnonzero((events.thread[launches] == thread) & counts)
        mine = mine[np.argsort(events.start[launches[mine]], kind="stable")]
        begin = np.flatnonzero(np.diff(is_copy[mine], prepend=not is_copy[mine[0]]))
        end = np.append(begin[1:], len(mine))
        beside = np.concatenate([[False], is_graph[mine], [False]])  # of each launch: the one before, two on the next
        runs = is_copy[mine][begin] & (beside[begin] | beside[end + 1]) & (end - begin >= MIN_COPIES)
        found += [launches[mine[a:b]] for a, b in zip(begin[runs].tolist(), end[runs].tolist(), strict=True)]
    copies = np.concatenate(found) if found else launches[:0]
    return np.flatnonzero(among(t.tasks.launch, copies) & free)


def _operator_names(t: Tables) -> Rows:
    """Return for each task the name of the innermost operator that launched it, -1 where none is known."""
    ops = t.operators
    return np.where(ops >= 0, t.trace.events.name[ops], -1)


def _within_device(t: Tables) -> Mask:
    """Return which tasks may be copies of one type within the device; operators show which kernels are."""
    kind = t.trace.events.kind[t.tasks.row]
    kernels = (kind == Kind.KERNEL) & (t.operators >= 0) & ~t.tasks_matching(CASTS)
    found: Mask = ~t.tasks.is_copy & ~t.tasks.is_collective & ~t.graph_nodes & ((kind == Kind.MEMCPY) | kernels)
    return found
