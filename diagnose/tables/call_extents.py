"""The time of a call and of what follows from it in backward passes.

Functions of the backward pass carry a number from a counter, which the operators of the forward carry as well: those
between the numbers at a call's begin and end are its own, and where gradients of gradients are taken, so are those that
its functions make in turn.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from diagnose.model.arrays import Ints, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, union
from diagnose.tables import Tables, shared_table
from diagnose.tables.host import host_rows
from diagnose.tables.names import BACKWARD, matching
from diagnose.tables.program import program_of
from diagnose.text.patterns import lazy_pattern

__all__ = ["extent", "numbered"]

MAX_TURNS = 4  # gradients of gradients of gradients
_FUNCTION = lazy_pattern(r"Backward\d*$")

_Range: TypeAlias = tuple[int, int]  # of numbers, the second exclusive


def extent(t: Tables, rows: Rows) -> tuple[Intervals, bool]:
    """Return the time of a call and of what follows from it in backward passes, and whether anything does."""
    host, turns = _turns(t, rows)
    return host, bool(turns)


def _turns(t: Tables, rows: Rows) -> tuple[Intervals, list[Rows]]:
    """Return the time of a call and of what follows, and the functions: its own, those of its gradients, and so on."""
    events = t.trace.events
    begin, end = int(events.start[rows].min()), int(events.end[rows].max())
    parts = [(np.array([begin], np.int64), np.array([end], np.int64))]
    turns: list[Rows] = []
    pending = _numbers(t, begin, end)
    for _ in range(MAX_TURNS):
        functions = _functions(t, pending)
        if not len(functions):
            break
        start, ended = events.start[functions], events.end[functions]
        parts.append((start, ended))
        turns.append(functions)
        pending = [each for a, b in zip(start.tolist(), ended.tolist(), strict=True) for each in _numbers(t, a, b)]
    return union(*parts), turns


def _numbers(t: Tables, begin: int, end: int) -> list[_Range]:
    """Return the numbers of the functions that operators within a time of the training thread leave behind."""
    rows, number = numbered(t)
    start = t.trace.events.start[rows]
    first, last = np.searchsorted(start, (begin, end))
    if first == last or last == len(start) or number[last] <= number[first]:
        return []
    return [(int(number[first]), int(number[last]))]


@shared_table
def numbered(t: Tables) -> tuple[Rows, Ints]:
    """Return rows and numbers of the training thread's operators that are called while gradients are on."""
    events = t.trace.events
    rows = host_rows(t.trace, t.main, Kind.OP)
    is_function = np.array([_FUNCTION.search(name) is not None for name in t.trace.names], bool)
    rows = rows[(events.sequence[rows] >= 0) & ~is_function[events.name[rows]]]
    return rows, events.sequence[rows]


def _functions(t: Tables, numbers: list[_Range]) -> Rows:
    """Return the functions of the backward pass that have one of these numbers."""
    rows, number = _all_functions(t)
    found = [rows[(number >= low) & (number < high)] for low, high in numbers]
    return np.concatenate(found) if found else rows[:0]


@shared_table
def _all_functions(t: Tables) -> tuple[Rows, Ints]:
    """Return the engine's functions with their numbers, those of other threads where no gradient has gradients.

    Each thread has a counter of its own, and a function that is made in another thread has a number of that.
    """
    events = t.trace.events
    rows = matching(t.trace, (Kind.OP, Kind.ANNOTATION), _FUNCTION)
    rows = rows[events.sequence[rows] >= 0]
    is_outer = np.array([BACKWARD.match(name) is not None for name in t.trace.names], bool)
    rows = rows[~is_outer[events.name[rows]]]
    if program_of(t).second_derivatives:
        rows = rows[events.thread[rows] == t.main]
    return rows, events.sequence[rows]
