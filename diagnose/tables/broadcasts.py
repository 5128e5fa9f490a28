"""Broadcasts of a model's buffers, which DistributedDataParallel makes in every forward."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from diagnose.intervals import EMPTY, Intervals, covered, intersect, union
from diagnose.tables import Tables
from diagnose.trace import Kind

__all__ = ["buffer_broadcasts", "exposed_broadcasts"]

_FORWARD = re.compile(r"^DistributedDataParallel\.forward")
_BROADCAST = re.compile(r"broadcast", re.IGNORECASE)


def buffer_broadcasts(t: Tables) -> npt.NDArray[np.intp]:
    """Return the rows of Tasks that are broadcasts launched inside DDP's forward."""
    forward = t.covering(t.calls(_FORWARD, Kind.ANNOTATION, Kind.OP))
    tasks = t.tasks
    mine = np.flatnonzero(tasks.is_collective & (tasks.launch >= 0))
    if not len(mine) or not len(forward.start):
        return np.empty(0, np.intp)
    named = np.array([bool(_BROADCAST.search(t.name(row))) for row in tasks.row[mine].tolist()], bool)
    called = t.trace.events.start[tasks.launch[mine]]
    named &= covered(forward, called, called + 1) > 0
    found: npt.NDArray[np.intp] = mine[named]
    return found


def exposed_broadcasts(t: Tables) -> Intervals:
    """Return the time in which such a broadcast runs and nothing else does."""
    rows = buffer_broadcasts(t)
    if not len(rows):
        return EMPTY
    return intersect(union((t.tasks.start[rows], t.tasks.end[rows])), t.occupancy.exposed_communication)
