"""Time in which a thread that called backward() waits for autograd's other threads: it runs no Python then."""

from __future__ import annotations

import re

import numpy as np

from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, union
from diagnose.tables import Tables
from diagnose.tables.host import host_rows
from diagnose.tables.names import matching

__all__ = ["autograd_waits"]

_EVALUATES = re.compile(r"^autograd::engine::evaluate_function")
_ROOT = re.compile(r"^aten::ones_like$")  # the gradient of the loss, which backward() makes before the engine starts


def autograd_waits(t: Tables) -> Intervals:
    """Return the time from the gradient of the root to what the engine evaluates first on that thread, and so on.

    Where another thread's operators are in the file they lie in that time; where that thread was not recorded, the time
    looks like Python between operators. A thread of autograd's own never makes the root: between what it evaluates lies
    the rest of the step.
    """
    events = t.trace.events
    evaluates, roots = np.zeros(len(events), bool), np.zeros(len(events), bool)
    evaluates[matching(t.trace, (Kind.OP,), _EVALUATES)] = True
    if not evaluates.any():
        return EMPTY
    roots[matching(t.trace, (Kind.OP,), _ROOT)] = True
    found = []
    for thread in t.threads:
        rows = host_rows(t.trace, thread, Kind.OP)
        before = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, events.end[rows]))[: len(rows)]
        rows = rows[events.start[rows] >= before]  # without operators in others
        one, two = rows[:-1], rows[1:]
        follows = evaluates[two] & (roots[one] | evaluates[one])
        begins = np.maximum.accumulate(np.where(follows, 0, np.arange(1, len(one) + 1)))  # the last one that does not
        waits = follows & roots[np.append(rows, -1)[begins]]
        found.append((events.end[one[waits]], events.start[two[waits]]))
    return union(*found)
