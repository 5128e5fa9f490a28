"""Gradients of embedding tables: what the backward pass queues, and on a CPU what whole tables take."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Mask, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, contains, union
from diagnose.model.shapes import Shape, num_elements
from diagnose.tables import Tables, shared_table
from diagnose.tables.host import host_rows
from diagnose.tables.matching_operators import carried_over
from diagnose.tables.optimizer_spans import updates
from diagnose.tables.shapes import shapes_of
from diagnose.text.patterns import lazy_pattern

__all__ = ["dense_updates", "in_embedding_backward"]

MAX_LOOKED_UP = 0.25  # of a table's rows in a step: of more the dense form is as fast

_BACKWARD = lazy_pattern(
    r"^autograd::engine::evaluate_function: Embedding(Bag)?Backward|embedding(_bag)?_dense_backward$"
)
_LOOKS_UP, _GRADIENT = "aten::embedding", "aten::embedding_dense_backward"


@shared_table
def dense_updates(t: Tables) -> Intervals:
    """Return the ends of operators without a device that fill and update whole tables of which few rows are used."""
    named = t.named
    tables = _barely_used(named) if t.device_id < 0 else frozenset[Shape]()
    rows = host_rows(named.trace, named.main, Kind.OP) if tables else np.empty(0, np.intp)
    events, names = named.trace.events, named.trace.names
    rows = rows[events.shapes[rows] >= 0]
    inside = contains(updates(named), events.start[rows])
    gradient = np.array([name == _GRADIENT for name in names], bool)[events.name[rows]]
    starts, ends = [], []
    for row, is_gradient in zip(rows[inside | gradient].tolist(), gradient[inside | gradient].tolist(), strict=True):
        start, end = int(events.start[row]), int(events.end[row])
        share = 1.0 if is_gradient else _share(shapes_of(named.trace, row), tables)
        starts.append(end - int(share * (end - start)))
        ends.append(end)
    if not any(gradient):
        return EMPTY
    return carried_over(t, union((np.array(starts, np.int64), np.array(ends, np.int64))))


def _barely_used(t: Tables) -> frozenset[Shape]:
    """Return the shapes of tables of which a step looks up few rows."""
    looked_up: dict[Shape, int] = {}
    rows = t.in_window(host_rows(t.trace, t.main, Kind.OP))
    wanted = np.array([name == _LOOKS_UP for name in t.trace.names], bool)
    for row in rows[wanted[t.trace.events.name[rows]]].tolist():
        given = shapes_of(t.trace, row)
        if len(given) >= 2 and len(given[0]) == 2:
            looked_up[given[0]] = looked_up.get(given[0], 0) + num_elements(given[1])
    return frozenset(table for table, num in looked_up.items() if num <= MAX_LOOKED_UP * table[0] * t.steps.num)


def _share(shapes: tuple[Shape, ...], tables: frozenset[Shape]) -> float:
    """Return the share of an operator's numbers that are such a table's."""
    sizes = [(num_elements(shape), shape in tables) for shape in shapes if shape]
    return sum(size for size, is_table in sizes if is_table) / max(sum(size for size, _ in sizes), 1)


def in_embedding_backward(t: Tables, tasks: Rows) -> Mask:
    """Return which tasks were launched inside the backward pass of an embedding."""
    found: Mask = t.launched_in(t.covering(t.calls(_BACKWARD, Kind.OP)))[tasks]
    return found
