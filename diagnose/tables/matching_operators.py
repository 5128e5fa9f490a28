"""Matches the training thread's operators of the timing window with those of the attribution window.

A step is recognised by the names of its outermost operators in the order of their starts: where a step of the
attribution window has the very same list, the two are the same work, operator by operator; where it has a list that is
the same but for one place, so are the operators before and behind that.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from diagnose.model.arrays import Ints, Rows
from diagnose.model.events import Kind
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import contains
from diagnose.tables import Tables, shared_table
from diagnose.tables.host import host_rows, outermost
from diagnose.tables.names import LOADER_NEXT

__all__ = ["MatchedStep", "matched_steps", "outermost_by_step"]

MIN_ALIKE = 0.9  # of a step's operators


class MatchedStep(NamedTuple):
    """A step's outermost operators, and the same ones of a step of the attribution window."""

    rows: Rows
    named: Rows


@shared_table
def outermost_by_step(t: Tables) -> list[Rows]:
    """Return each step's outermost operators of the training thread, those of the loader left out."""
    rows = t.in_window(host_rows(t.trace, t.main, Kind.OP))
    outer = outermost(t.trace, rows)
    loading = t.covering(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    outer = outer[~contains(loading, t.trace.events.start[outer])]
    cuts = np.searchsorted(t.trace.events.start[outer], t.steps.start)
    return [part for part in np.split(outer, cuts)[1:] if len(part)]


@shared_table
def matched_steps(t: Tables) -> list[MatchedStep]:
    """Return the steps that the attribution window has a like of; all steps where they are of one window."""
    named = t.named
    if named is t:
        return [MatchedStep(rows, rows) for rows in outermost_by_step(t)]
    number = {name: i for i, name in enumerate(named.trace.names)}
    mine = np.array([number.get(name, -1) for name in t.trace.names] or [-1], np.int64)
    others = {named.trace.events.name[rows].astype(np.int64).tobytes(): rows for rows in outermost_by_step(named)}
    each = ((rows, mine[t.trace.events.name[rows]]) for rows in outermost_by_step(t))
    found = [_like(named, rows, names, others) for rows, names in each]
    return [step for step in found if step is not None]


def _like(named: Tables, rows: Rows, names: Ints, others: Mapping[bytes, Rows]) -> MatchedStep | None:
    """Return a step with the same operators; else with what is the same of the nearest, at its begin and its end.

    Now and then a step logs or clips, and of long steps only one is recorded with shapes.
    """
    same = others.get(names.tobytes())
    if same is not None:
        return MatchedStep(rows, same)
    best: MatchedStep | None = None
    for other in others.values():
        theirs = named.trace.events.name[other].astype(np.int64)
        most = min(len(rows), len(other))
        first = _num_alike(names[:most], theirs[:most])
        last = min(_num_alike(names[::-1][:most], theirs[::-1][:most]), most - first)
        if first + last >= max(MIN_ALIKE * len(rows), len(best.rows) + 1 if best is not None else 1):
            of = np.r_[:first, len(rows) - last : len(rows)]
            of_other = np.r_[:first, len(other) - last : len(other)]
            best = MatchedStep(rows[of], other[of_other])
    return best


def _num_alike(one: Ints, other: Ints) -> int:
    """Return how many of the first numbers are the same."""
    differ = np.flatnonzero(one != other)
    return int(differ[0]) if len(differ) else len(one)
