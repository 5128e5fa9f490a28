"""Which operator launched each device task, and with which inputs.

Where the trace has no shapes of its own, as that of a timing window, they come from the attribution window: see
``match_tasks``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Mask, Rows
from diagnose.model.events import Kind
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import Intervals, subtract, union
from diagnose.tables import Tables, shared_table
from diagnose.tables.host_gaps import host_gaps
from diagnose.tables.window_matching import match_tasks

__all__ = ["OperatorInputs", "host_time_behind_first", "operator_inputs", "operators"]


class OperatorInputs(NamedTuple):
    """The launching operator of each task and its inputs: rows of ``texts``, parallel to the tasks, -1 for unknown."""

    texts: Sequence[str]
    name: npt.NDArray[np.int32]
    shapes: npt.NDArray[np.int32]
    types: npt.NDArray[np.int32]
    values: npt.NDArray[np.int32]

    @property
    def is_known(self) -> Mask:
        """Return for which tasks shapes and types are there."""
        known: Mask = (self.shapes >= 0) & (self.types >= 0)
        return known

    def text(self, row: int) -> str:
        """Return a text, "" for -1."""
        return self.texts[row] if row >= 0 else ""


@shared_table
def operators(t: Tables) -> Rows:
    """Return for each task the innermost operator that launched it, -1 where none is known.

    It is looked for in the middle of the call: times are rounded, and an operator before it may seem to end within.
    """
    events = t.trace.events
    found = np.full(len(t.tasks.row), -1, np.intp)
    launch = t.tasks.launch
    for thread, layers in t.work_layers.items():
        mine = np.flatnonzero((launch >= 0) & (events.thread[np.maximum(launch, 0)] == thread))
        time: Ints = (events.start[launch[mine]] + events.end[launch[mine]]) // 2
        for depth in range(len(layers.rows)):
            rows = layers.open_in(depth, time)
            is_op = (rows >= 0) & (events.kind[np.maximum(rows, 0)] == Kind.OP)
            found[mine[is_op]] = rows[is_op]
    return found


def host_time_behind_first(t: Tables, runs: Sequence[Rows]) -> Intervals:
    """Return when the host issued the tasks of each run but the first: operators, and the Python between them.

    It is what goes where one operator stands in the place of a run. Runs that more than one thread launched are left
    out, and so are long pauses between two operators, which are not about issuing.
    """
    ops, events = operators(t), t.trace.events
    spans = []
    for tasks in runs:
        rows = ops[tasks]
        rows = rows[rows >= 0]
        if len(rows) and (events.thread[rows] == events.thread[rows[0]]).all():
            spans.append((events.end[rows].min(), events.end[rows].max()))
    start, end = np.array(spans, np.int64).reshape(-1, 2).T
    return subtract(union((start, end)), host_gaps(t))


@shared_table
def operator_inputs(t: Tables) -> OperatorInputs:
    """Return the inputs of each task's operator, as far as they were recorded."""
    own = _recorded(t)
    named = t.named
    if named is t or own.is_known.any():
        return own
    other, match = _recorded(named), match_tasks(t, named)
    columns = (
        np.where(match >= 0, column[match], -1) if len(column) else np.full(len(match), -1) for column in other[1:]
    )
    return OperatorInputs(other.texts, *(column.astype(np.int32) for column in columns))


def _recorded(t: Tables) -> OperatorInputs:
    events, ops = t.trace.events, operators(t)
    columns = (events.name, events.shapes, events.types, events.values)
    if not len(events):
        return OperatorInputs(t.trace.names, *(np.full(len(ops), -1, np.int32) for _ in columns))
    return OperatorInputs(t.trace.names, *(np.where(ops >= 0, column[ops], -1).astype(np.int32) for column in columns))
