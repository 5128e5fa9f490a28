"""What the backward pass of a step computes for the forward of earlier steps: a graph that was kept.

Autograd numbers what the forward calls, and the backward pass of each call has its number. A number below that of the
step's first operator is of an earlier step.
"""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import Intervals, contains, distinct
from diagnose.tables import Tables, host_table
from diagnose.tables.names import BACKWARD, matching
from diagnose.text.patterns import lazy_pattern

__all__ = ["KeptGraph", "kept_graph"]

MIN_STEPS_SHARE = 0.5  # of the steps: marks that part a step from its own backward pass leave a node now and then
_GRADIENT = lazy_pattern(r"AccumulateGrad$")  # has no forward of its own


class KeptGraph(NamedTuple):
    """What is computed of earlier steps; figures are for a step."""

    host: Intervals  # the engine's functions
    num: float
    of: float  # all functions of the backward pass


@host_table
def kept_graph(t: Tables) -> KeptGraph | None:
    """Return the functions of the backward pass whose forward ran before the step began; None where hardly any is.

    Numbers count on each thread by itself: where several threads run the forward, none is known to be earlier.
    """
    events, steps = t.trace.events, t.steps
    rows = matching(t.trace, (Kind.OP, Kind.ANNOTATION), BACKWARD)
    passes = t.covering(rows)
    rows = rows[(events.sequence[rows] >= 0) & (events.start[rows] >= steps.start[0])]
    rows = rows[~np.array([_GRADIENT.search(t.name(row)) is not None for row in rows.tolist()], bool)]
    ops = np.flatnonzero((events.kind == Kind.OP) & (events.sequence >= 0))
    forward = ops[~contains(passes, events.start[ops])]
    if not len(rows) or len(distinct(events.thread[forward])) != 1:
        return None
    first = _first_numbers(t, forward)
    step = np.searchsorted(steps.start, events.start[rows], side="right") - 1
    old = events.sequence[rows] < first[step]
    if len(distinct(step[old])) < max(MIN_STEPS_SHARE * steps.num, 1):
        return None
    return KeptGraph(t.covering(rows[old]), int(old.sum()) / steps.num, len(rows) / steps.num)


def _first_numbers(t: Tables, forward: Rows) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the number of each step's first operator, 0 where it has none."""
    events = t.trace.events
    step = np.searchsorted(t.steps.start, events.start[forward], side="right") - 1
    first = np.full(t.steps.num, np.iinfo(np.int64).max)
    inside = step >= 0
    np.minimum.at(first, step[inside], events.sequence[forward[inside]])
    return np.where(first == np.iinfo(np.int64).max, 0, first)
