"""Where the host's time goes: operators by self time over the steady steps."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Floats, Ints
from diagnose.model.charts import HostOperator
from diagnose.model.events import Kind
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import among
from diagnose.tables import Tables
from diagnose.tables.host import host_rows, layers

__all__ = ["host_operators"]

MAX_OPERATORS = 12


class _Sums(NamedTuple):
    """Of operators of each name, calls and nanoseconds, by row of ``Trace.names``."""

    calls: Ints
    own: Floats  # self time
    whole: Floats


def _sums(t: Tables, thread: int) -> _Sums:
    """Return the sums of one thread's operators in the window; self time is without that of the operators in them."""
    start, end = t.steps.window
    rows, events, num = host_rows(t.trace, thread, Kind.OP), t.trace.events, len(t.trace.names)
    nested = layers(t.trace, rows[(events.start[rows] >= start) & (events.start[rows] < end)])
    calls, own, whole = np.zeros(num, np.int64), np.zeros(num), np.zeros(num)
    for depth, layer in enumerate(nested.rows):
        names, spent = events.name[layer], (events.end[layer] - nested.start[depth]).astype(np.float64)
        calls += np.bincount(names, minlength=num)
        whole += np.bincount(names, spent, num)
        if depth + 1 < len(nested.rows):
            children = nested.rows[depth + 1]
            parent = np.searchsorted(nested.start[depth], nested.start[depth + 1], side="right") - 1
            spent -= np.bincount(parent, events.end[children] - nested.start[depth + 1], len(layer))
        own += np.bincount(names, np.maximum(spent, 0.0), num)
    return _Sums(calls, own, whole)


def host_operators(t: Tables) -> tuple[HostOperator, ...]:
    """Return the operators of the threads that matter, the most expensive by self time first."""
    if not t.threads:
        return ()
    parts = [_sums(t, thread) for thread in t.threads]
    calls, own, whole = (sum(column) for column in zip(*parts, strict=True))
    called = np.flatnonzero(calls)
    return tuple(
        HostOperator(
            name=t.trace.names[i],
            calls_per_step=calls[i] / t.steps.num,
            self_ns=own[i] / t.steps.num,
            total_ns=whole[i] / t.steps.num,
            shapes=_commonest_shapes(t, i),
        )
        for i in called[np.argsort(-own[called], kind="stable")][:MAX_OPERATORS].tolist()
    )


def _commonest_shapes(t: Tables, name: int) -> str:
    """Return the shapes that most of the calls of a name have, the first of several; "" where none were recorded."""
    events, (start, end) = t.trace.events, t.steps.window
    rows = np.flatnonzero((events.name == name) & (events.kind == int(Kind.OP)) & (events.shapes >= 0))
    rows = rows[(events.start[rows] >= start) & (events.start[rows] < end) & among(events.thread[rows], t.threads)]
    if not len(rows):
        return ""
    shapes = events.shapes[rows]
    counted = np.bincount(shapes)
    commonest = int(shapes[(counted[shapes] == counted.max()).argmax()])
    return t.trace.names[commonest]
