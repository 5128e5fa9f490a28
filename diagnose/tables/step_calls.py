"""The same call in each step: the k-th operator of its name in a step, or the k-th annotation.

Only steps count that have as many calls of the name as most steps have. Where the attribution window's steps have as
many, its call of the same name and place is the same one, with stacks and shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import among
from diagnose.tables import Tables
from diagnose.tables.host import host_rows, outermost
from diagnose.tables.names import STEP_MARK, rows_of

Call: TypeAlias = tuple[str, bool, int, int]
"""The name, whether the training thread calls it, the place among a step's calls of the name, from 0, of how many."""


class StepCalls(NamedTuple):
    """Operators that lie in no other one of their thread, and annotations."""

    rows: Mapping[Call, Rows]
    of: Mapping[int, Call]


def step_calls(t: Tables) -> StepCalls:
    """Return the rows of each call, one for each of the steps that have it, and the call of each row."""
    events = t.trace.events
    is_mark = np.array([STEP_MARK.match(name) is not None for name in t.trace.names], bool)
    ops = [outermost(t.trace, host_rows(t.trace, thread, Kind.OP)) for thread in t.threads]
    annotations = rows_of(t.trace, Kind.ANNOTATION)
    annotations = annotations[
        among(events.thread[annotations], np.array(t.threads, np.int16)) & ~is_mark[events.name[annotations]]
    ]
    rows = np.sort(np.concatenate([*ops, annotations]))
    # Of the steps on the host: the window is that of their tasks, which a device may run later.
    first, last = np.searchsorted(events.start[rows], [t.steps.start[:1].sum(), t.steps.end[-1:].sum()])
    rows = rows[first:last]
    if not len(rows):
        return StepCalls({}, {})
    step = np.searchsorted(t.steps.start, events.start[rows], side="right")
    is_main = events.thread[rows] == t.main
    order = np.lexsort((events.start[rows], step, is_main, events.name[rows]))
    rows, step, is_main = rows[order], step[order], is_main[order]
    kind = events.name[rows].astype(np.int64) * 2 + is_main
    firsts = np.flatnonzero(np.diff(kind, prepend=-1) | np.diff(step, prepend=-1))
    num = np.diff(np.append(firsts, len(rows)))
    found: dict[Call, Rows] = {}
    for each in np.split(np.arange(len(firsts)), np.flatnonzero(np.diff(kind[firsts])) + 1):
        usual = int(np.bincount(num[each]).argmax())
        starts = firsts[each[num[each] == usual]]
        name, on_main = t.name(int(rows[starts[0]])), bool(is_main[starts[0]])
        for k in range(usual):
            found[name, on_main, k, usual] = rows[starts + k]
    return StepCalls(found, {row: call for call, mine in found.items() for row in mine.tolist()})
