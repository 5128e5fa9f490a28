"""Where the host's time goes: operators by self time over the steady steps."""

from __future__ import annotations

from collections import Counter

import numpy as np

from diagnose.model.arrays import Ints
from diagnose.model.diagnosis import HostOperator
from diagnose.model.events import Kind
from diagnose.model.intervals import grouped
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
    spent = (events.end - events.start)[rows].astype(np.int64)
    place = np.zeros(len(events), np.intp)
    place[rows] = np.arange(len(rows))
    nested = layers(t.trace, rows)
    for depth in range(1, len(nested.rows)):
        children = nested.rows[depth]
        parents = nested.open_in(depth - 1, events.start[children])
        known = parents >= 0
        time = (events.end - events.start)[children[known]]
        np.subtract.at(spent, place[parents[known]], time)
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
    names, _, inverse = grouped(events.name[rows])
    own = np.bincount(inverse, spent.astype(np.float64))
    whole = np.bincount(inverse, (events.end - events.start)[rows].astype(np.float64))
    calls = np.bincount(inverse)
    return tuple(
        HostOperator(
            name=t.trace.names[int(names[i])],
            calls_per_step=calls[i] / t.steps.num,
            self_ns=own[i] / t.steps.num,
            total_ns=whole[i] / t.steps.num,
            shapes=_commonest_shapes(t, rows[inverse == i]),
        )
        for i in np.argsort(-own, kind="stable")[:MAX_OPERATORS]
    )


def _commonest_shapes(t: Tables, rows: Ints) -> str:
    shapes = t.trace.events.shapes[rows]
    counted = Counter(shapes[shapes >= 0].tolist())
    return t.trace.names[counted.most_common(1)[0][0]] if counted else ""
