"""How long ranks wait for each other in collectives: the same collective on every rank.

All ranks leave a collective together, and each enters it when it gets there: the one that is inside for the shortest
time came last, and what another was inside for longer it waited. No common clock is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diagnose.model.arrays import Floats, Ints
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, covered, intersect, union
from diagnose.tables import Tables
from diagnose.tables.names import HOST_BACKEND, matching

__all__ = ["Skew", "skew_of"]

MIN_WAIT_SHARE = 0.5  # of the others' waiting, from which one rank is called the late one


@dataclass(frozen=True)
class Skew:
    """The ranks' waits; the first axis of the arrays is the index in the given list of ranks."""

    num_collectives: int  # a step
    waits_ns: Floats  # exposed waiting for other ranks, per step
    last: Floats  # of the others' waiting, the share in which this rank was the one that came last
    waiting: tuple[Intervals, ...]  # when each rank waits, hidden or not

    @property
    def lost_ns(self) -> float:
        """Return what a step would be shorter if the last came when the ranks in the middle do."""
        return float(np.median(self.waits_ns))

    @property
    def last_most(self) -> int:
        """Return the index of the rank that the others wait for most."""
        return int(self.last.argmax())

    @property
    def late(self) -> int | None:
        """Return the index of the rank that most of the waiting is for, None where it varies."""
        return self.last_most if self.last[self.last_most] >= MIN_WAIT_SHARE else None


def skew_of(ranks: Sequence[Tables]) -> Skew | None:
    """Compare the collectives of all ranks; None where they cannot be matched."""
    each = [_collectives(t) for t in ranks]
    if len(ranks) < 2 or not len(each[0][0]) or any(names != each[0][0] for names, _, _ in each):
        return None
    length = np.array([end - start for _, start, end in each])
    shortest = length.min(axis=0)
    waits, waiting = np.zeros(len(ranks)), []
    for i, (t, (_, start, _)) in enumerate(zip(ranks, each, strict=True)):
        waiting.append(union((start, start + length[i] - shortest)))
        waits[i] = _exposed(t, waiting[-1]) / t.steps.num
    others = (length - shortest).sum(axis=0).astype(np.float64)
    last = np.bincount(length.argmin(axis=0), others, minlength=len(ranks)) / max(others.sum(), 1.0)
    return Skew(len(each[0][0]) // max(ranks[0].steps.num, 1), waits, last, tuple(waiting))


def _collectives(t: Tables) -> tuple[list[str], Ints, Ints]:
    """Return the names, starts and ends of the collectives in the window, in the order of their starts."""
    if t.device_id >= 0:
        mine = np.flatnonzero(t.tasks.is_collective)
        rows = t.tasks.row[mine[np.argsort(t.tasks.start[mine], kind="stable")]]
    else:
        rows = np.sort(t.in_window(matching(t.trace, (Kind.ANNOTATION, Kind.OP), HOST_BACKEND)))
    events = t.trace.events
    return [t.name(row) for row in rows.tolist()], events.start[rows], events.end[rows]


def _exposed(t: Tables, waits: Intervals) -> int:
    if t.device_id < 0:
        return int((waits.end - waits.start).sum())
    exposed: Intervals = intersect(waits, t.occupancy.exposed_communication)
    first, last = t.steps.window
    return int(covered(exposed, np.array([first]), np.array([last]))[0])
