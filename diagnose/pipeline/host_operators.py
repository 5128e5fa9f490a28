"""Where the host's time goes: operators by self time over the steady steps."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Ints
from diagnose.model.diagnosis import HostOperator
from diagnose.model.events import Kind
from diagnose.tables import Tables
from diagnose.tables.host import host_rows, layers

__all__ = ["host_operators", "self_times"]

MAX_OPERATORS = 12


def self_times(t: Tables, thread: int) -> tuple[Ints, Ints]:
    """Return (rows, self ns) of one thread's operators in the window: their time less that of the operators in them."""
    start, end = t.steps.window
    rows = host_rows(t.trace, thread, Kind.OP)
    events = t.trace.events
    rows = rows[(events.start[rows] >= start) & (events.start[rows] < end)]
    spent = events.end[rows] - events.start[rows]
    nested = layers(t.trace, rows)
    for depth in range(1, len(nested.rows)):
        children = nested.rows[depth]
        parents = nested.open_in(depth - 1, events.start[children])
        known = parents >= 0
        time = events.end[children[known]] - events.start[children[known]]
        np.subtract.at(spent, np.searchsorted(rows, parents[known]), time)
    return rows, np.maximum(spent, 0)


def host_operators(t: Tables) -> tuple[HostOperator, ...]:
    """Return the operators of the threads that matter, the most expensive by self time first."""
    if not t.threads:
        return ()
    parts = [self_times(t, thread) for thread in t.threads]
    rows, spent = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    if not len(rows):
        return ()
    events = t.trace.events
    names = events.name[rows]
    calls, own = np.bincount(names), np.bincount(names, spent)
    whole = np.bincount(names, events.end[rows] - events.start[rows])
    called = np.flatnonzero(calls)
    return tuple(
        HostOperator(
            name=t.trace.names[i],
            calls_per_step=calls[i] / t.steps.num,
            self_ns=own[i] / t.steps.num,
            total_ns=whole[i] / t.steps.num,
            shapes=_commonest_shapes(t, rows[names == i]),
        )
        for i in called[np.argsort(-own[called], kind="stable")][:MAX_OPERATORS].tolist()
    )


def _commonest_shapes(t: Tables, rows: Ints) -> str:
    """Return the shapes that most of the calls have, the first of several; "" where none were recorded."""
    shapes = t.trace.events.shapes[rows]
    shapes = shapes[shapes >= 0]
    if not len(shapes):
        return ""
    counted = np.bincount(shapes)
    commonest = int(shapes[(counted[shapes] == counted.max()).argmax()])
    return t.trace.names[commonest]
