"""What the host spends on calling operators instead of on their work, where there is no device."""

from __future__ import annotations

import numpy as np

from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, intersect, span, subtract, total, union
from diagnose.tables import Tables
from diagnose.tables.host_gaps import host_gaps, outside_operators

__all__ = ["TINY_NS", "overhead", "tiny_operators", "tiny_share"]

# Calling an operator from Python takes 2 to 10 µs on a host CPU, recorded 3 to 15: one that is over in less has
# hardly done more than be called.
TINY_NS = 15_000
# Below this share of the step the rest dominates, and fusing small operators would not be felt.
MIN_OVERHEAD_SHARE = 0.3


def tiny_operators(t: Tables) -> Intervals:
    """Return the time of operators of the training thread that took less than TINY_NS."""
    events = t.trace.events
    rows = t.host_rows(Kind.OP)
    small = rows[events.end[rows] - events.start[rows] < TINY_NS]
    return t.covering(small)


def overhead(t: Tables) -> Intervals:
    """Return the time of calling operators: Python between them, and operators too small to be work.

    Nothing where all of it is less than 30 % of the window: the step is work then.
    """
    window = span(*t.steps.window)
    between = subtract(outside_operators(t), host_gaps(t))
    calls = intersect(union(tiny_operators(t), between), window)
    return calls if total(calls) >= MIN_OVERHEAD_SHARE * total(window) else EMPTY


def tiny_share(t: Tables) -> tuple[float, float]:
    """Return how many operators a step calls, and which share of them is tiny."""
    events = t.trace.events
    rows = t.host_rows(Kind.OP)
    start, end = t.steps.window
    rows = rows[(events.start[rows] >= start) & (events.start[rows] < end)]
    tiny = events.end[rows] - events.start[rows] < TINY_NS
    return len(rows) / t.steps.num, float(np.mean(tiny)) if len(rows) else 0.0
