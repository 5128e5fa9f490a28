"""Loaders that begin anew for each batch: ``next(iter(loader))`` draws the order of all samples to read a few."""

from __future__ import annotations

import re

import numpy as np

from diagnose.model.events import Kind
from diagnose.tables import Tables
from diagnose.tables.host import host_rows
from diagnose.tables.names import LOADER_NEXT

__all__ = ["restart_share"]

MIN_CALLS = 4  # fewer may be epochs
MIN_RESTARTED = 0.9  # of the calls: with epochs of a few batches some go on
_ORDER = "aten::randperm"
_BEGIN = r"^aten::(empty|random_|item|_local_scalar_dense|randperm|scalar_tensor|resize_|resolve_\w+)$"


def restart_share(t: Tables) -> float | None:
    """Return which share of loading beginning anew takes: drawing the order, and making a list of it.

    That is from the begin of the call to the first operator that reads samples. None where most calls go on with an
    order that is there; a loader that does not shuffle shows nothing.
    """
    events, names = t.trace.events, t.trace.names
    calls = t.in_window(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    rows = host_rows(t.trace, t.main, Kind.OP)
    draws = rows[events.name[rows] == names.index(_ORDER)] if _ORDER in names else rows[:0]
    if len(calls) < MIN_CALLS or not len(draws):
        return None
    start, end = events.start[calls], events.end[calls]
    drawn = np.searchsorted(events.start[draws], start)
    restarted = (drawn < len(draws)) & (events.start[draws][np.minimum(drawn, len(draws) - 1)] < end)
    if restarted.mean() < MIN_RESTARTED:
        return None
    reads = np.array([re.match(_BEGIN, name) is None for name in names], bool)
    begun = np.append(events.start[rows[reads[events.name[rows]]]], np.iinfo(np.int64).max)
    until = np.minimum(begun[np.searchsorted(begun, start, side="right")], end)
    return float((until - start)[restarted].sum() / max(int((end - start).sum()), 1))
