"""Gradient buckets of another size: the recorded reductions of a step, cut anew.

Gradients become ready evenly between the moments at which the recorded buckets were; a bucket may start when its last
gradient is ready and the one before it is done, and takes a start-up and its bytes at the recorded rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Floats, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import distinct
from diagnose.perf_model.gpu_specs import bandwidth_of, rebucketed, transfer_ns
from diagnose.replay.build import graph_of
from diagnose.replay.graph import Edge, Graph, Transform
from diagnose.replay.simulate import simulate
from diagnose.tables import Tables
from diagnose.tables.names import BACKWARD, REDUCTION

MAX_UNEXPLAINED = 0.1  # of the step: what the model of sizes and rate may be off for the recorded buckets
_ELEMENT_BYTES = {"float": 4, "half": 2, "bfloat16": 2, "double": 8, "char": 1, "byte": 1}


class Reductions(NamedTuple):
    """The reductions of gradients that a window holds; columns are parallel, in time order."""

    row: Rows  # of Trace.events: the task
    num_bytes: Floats
    step: Rows
    begin: Floats  # ns, for each step: when its first gradient was computed
    rate: float  # bytes per ns


def reductions(t: Tables) -> Reductions | None:
    """Return the reductions whose size is recorded, None where sizes or the backward are not."""
    events, tasks = t.trace.events, t.tasks
    mine = np.flatnonzero(tasks.is_collective & (events.size[tasks.row] > 0) & (events.detail[tasks.row] >= 0))
    details = [t.trace.names[int(detail)] for detail in events.detail[tasks.row[mine]]]
    each = np.array([_element_bytes(text) for text in details], np.float64)
    mine, each = mine[each > 0], each[each > 0]
    began = np.sort(events.start[t.calls(BACKWARD, Kind.OP, Kind.ANNOTATION)], kind="stable")
    if not len(mine) or not len(began):
        return None
    num_bytes = each * events.size[tasks.row[mine]]
    length = (tasks.end - tasks.start)[mine].astype(np.float64)
    rate = bandwidth_of(num_bytes, length)
    queued = np.where(tasks.launch[mine] >= 0, events.start[tasks.launch[mine]], tasks.start[mine])
    step = np.searchsorted(t.steps.end, queued, side="left").astype(np.intp)
    first = began[np.minimum(np.searchsorted(began, t.steps.start), len(began) - 1)].astype(np.float64)
    inside = step < t.steps.num
    return Reductions(tasks.row[mine[inside]], num_bytes[inside], step[inside], first, rate)


def with_buckets(t: Tables, bucket_mb: float) -> Transform | None:
    """Return the change to buckets of ``bucket_mb`` MiB, None where the recorded ones are not known.

    None too where the recorded buckets do not follow from their sizes: what they take then is mostly waiting for other
    ranks, and that no size of a bucket changes.
    """
    known = reductions(t)
    if known is None or not len(known.row) or _unexplained(graph_of(t), known) > MAX_UNEXPLAINED * t.steps.step_ns:
        return None

    def change(graph: Graph) -> Graph:
        duration = graph.duration.copy()
        for nodes, ready, num_bytes, begin in _by_step(graph, known):
            end = end_of_buckets(ready, num_bytes, begin, bucket_mb * 2**20, known.rate)
            duration[nodes] = 0.0
            duration[nodes[-1]] = max(end - ready[-1], 0.0)
        return replace(graph, duration=duration)

    return change


def _by_step(graph: Graph, known: Reductions) -> Iterator[tuple[Rows, Floats, Floats, float]]:
    """Yield, for each step, its reductions: nodes, when each was ready, bytes; and the begin of its backward."""
    ready = _ready(graph)
    tasks = np.flatnonzero(graph.is_task)
    order = tasks[np.argsort(graph.row[tasks], kind="stable")]
    at = np.minimum(np.searchsorted(graph.row[order], known.row), len(order) - 1)
    held = graph.row[order[at]] == known.row
    for step in distinct(known.step[held]).tolist():
        mine = held & (known.step == step)
        nodes = order[at[mine]]
        yield nodes, ready[nodes], known.num_bytes[mine], float(known.begin[step])


def _unexplained(graph: Graph, known: Reductions) -> float:
    """Return how far off, ns, the recorded buckets end when their sizes and the rate are all that is known of them."""
    off = []
    for nodes, ready, num_bytes, _ in _by_step(graph, known):
        end = 0.0
        for at, size in zip(ready.tolist(), num_bytes.tolist(), strict=True):
            end = max(end, at) + transfer_ns(size, known.rate)
        off.append(abs(end - float(graph.end[nodes[-1]])))
    return float(np.mean(off)) if off else 0.0


def end_of_buckets(ready: Floats, num_bytes: Floats, begin: float, bucket_bytes: float, rate: float) -> float:
    """Return when the last of the new buckets is reduced, ns.

    Args:
        ready: when the last gradient of each recorded bucket was ready, ns.
        num_bytes: of each recorded bucket.
        begin: when the first gradient was computed, ns.
        bucket_bytes: of the new buckets; the last one takes the rest.
        rate: of the link, bytes per ns.
    """
    full, sizes = rebucketed(ready, num_bytes, begin, bucket_bytes)
    end = 0.0
    for at, size in zip(full.tolist(), sizes.tolist(), strict=True):
        end = max(end, at) + transfer_ns(size, rate)
    return end


def _ready(graph: Graph) -> Floats:
    """Return when each node is ready in a replay, but for the order on its stream."""
    end = simulate(graph).end
    ready = np.full(len(graph), float(graph.start[0]))
    counts = graph.kind != Edge.STREAM
    np.maximum.at(ready, graph.dst[counts], end[graph.src[counts]] + graph.delay[counts])
    return ready


def _element_bytes(detail: str) -> int:
    """Return the bytes of an element of a reduction recorded as ``name|dtype|group size``, 0 for other collectives."""
    name, _, rest = detail.partition("|")
    return _ELEMENT_BYTES.get(rest.partition("|")[0].lower(), 0) if REDUCTION.fullmatch(name) else 0
