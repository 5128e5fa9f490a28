"""Collectives that rules of their own speak of: broadcasts of buffers in DDP's forward, and many small ones."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, among, covered, intersect, subtract, union
from diagnose.tables import Tables

__all__ = ["buffer_broadcasts", "exposed_broadcasts", "exposed_small", "small_collectives"]

MIN_COLLECTIVES_PER_STEP = 30  # collectives a step beyond which their number itself costs
SMALL_NS = 100_000

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


def small_collectives(t: Tables) -> npt.NDArray[np.intp]:
    """Return the rows of Tasks that are collectives of under ``SMALL_NS``, none where they are few."""
    tasks = t.tasks
    mine = np.flatnonzero(tasks.is_collective & (tasks.end - tasks.start < SMALL_NS))
    found: npt.NDArray[np.intp] = mine[~among(mine, buffer_broadcasts(t))]
    return found if len(found) > MIN_COLLECTIVES_PER_STEP * t.steps.num else np.empty(0, np.intp)


def exposed_small(t: Tables) -> Intervals:
    """Return the time in which such a small collective runs and nothing else does."""
    rows = small_collectives(t)
    if not len(rows):
        return EMPTY
    alone = intersect(union((t.tasks.start[rows], t.tasks.end[rows])), t.occupancy.exposed_communication)
    return subtract(alone, exposed_broadcasts(t))
