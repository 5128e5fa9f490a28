"""The data flow of a step, joined to the timing window: what its operators took in each of the recorded steps.

The data flow has the operators below autograd. The timing window has those and what calls them or is called by them:
of these, the outermost that bear a name of the data flow are its own. The k-th operator of a name in a step is the k-th
of that name in each step with as many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from diagnose.dataflow import Analyses, analyse
from diagnose.model.arrays import Rows
from diagnose.model.dataflow import Dataflow
from diagnose.model.events import Kind
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import EMPTY, Intervals, distinct
from diagnose.tables import Tables, host_table
from diagnose.tables.host import outermost

__all__ = ["Flow", "flow_of"]


class Flow(NamedTuple):
    """What the analyses found, and for each operator its events in the window: one for each step that has it."""

    found: Analyses
    rows: tuple[Rows, ...]

    def time_of(self, t: Tables, operators: Iterable[int]) -> Intervals:
        """Return when the timing window runs some operators; nothing of those that it cannot be joined to."""
        each = [self.rows[i] for i in operators]
        return t.covering(np.sort(np.concatenate(each))) if each else EMPTY


@host_table
def flow_of(t: Tables) -> Flow | None:
    """Return the data flow of the capture, None where it has none."""
    flow = t.capture.dataflow
    return Flow(analyse(flow), _joined(t, flow)) if flow is not None and flow.operators else None


def _joined(t: Tables, flow: Dataflow) -> tuple[Rows, ...]:
    numbers: dict[tuple[int, str], list[int]] = defaultdict(list)  # operators by step and name
    for i, operator in enumerate(flow.operators):
        numbers[operator.step, operator.name.partition(".")[0]].append(i)
    events: dict[str, list[Rows]] = defaultdict(list)  # of each name, those of each step
    names = {name for _, name in numbers}
    rows = _outermost(t, names)
    step = np.searchsorted(t.steps.start, t.trace.events.start[rows], side="right") - 1
    for name in names:
        of_name = t.trace.events.name[rows] == _name_id(t, name)
        events[name] = [rows[of_name & (step == number)] for number in range(t.steps.num)]
    found: list[list[int]] = [[] for _ in flow.operators]
    for (_, name), mine in numbers.items():
        for of_step in events[name]:
            if len(of_step) == len(mine):
                for i, row in zip(mine, of_step.tolist(), strict=True):
                    found[i].append(row)
    return tuple(np.array(each, np.intp) for each in found)


def _name_id(t: Tables, name: str) -> int:
    return t.trace.names.index(name) if name in t.trace.names else -1


def _outermost(t: Tables, names: set[str]) -> Rows:
    """Return the window's operators of some names that lie in no other of them, in time order."""
    wanted = np.array([name in names for name in t.trace.names] or [False], bool)
    rows = t.in_window(t.host_rows(Kind.OP))
    rows = rows[wanted[t.trace.events.name[rows]]]
    threads = t.trace.events.thread[rows]
    each = [outermost(t.trace, rows[threads == thread]) for thread in distinct(threads).tolist()]
    return np.sort(np.concatenate(each)) if each else rows
