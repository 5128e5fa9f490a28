"""The order of the rows: by start, and where clocks are coarse, parents before their children."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.model.events import Ints, Kind

__all__ = ["chronological", "repeated"]

_Rows = npt.NDArray[np.intp]
_Kinds = npt.NDArray[np.uint8]

# Which kind encloses which where two rows have the same start and end.
_DEPTH = np.full(len(Kind), 2, np.uint8)
_DEPTH[Kind.ANNOTATION] = 0
_DEPTH[Kind.PYTHON] = 1
_DEPTH[[Kind.RUNTIME, Kind.SYNC]] = 3

_IDENTITY = ("start", "end", "kind", "name", "thread", "device", "stream", "correlation")


def chronological(start: Ints, end: Ints, kind: _Kinds, thread: npt.NDArray[np.int16]) -> _Rows:
    """Return the rows sorted by start, ties by the later end, then outer kinds first, then by nesting."""
    order = np.argsort(start, kind="stable")
    sorted_start = start[order]
    same = sorted_start[1:] == sorted_start[:-1]
    if not same.any():
        return order
    ties = np.flatnonzero(np.r_[False, same] | np.r_[same, False])
    tied = order[ties]
    place = -tied if _children_first(start, end, kind, thread) else tied
    order[ties] = tied[np.lexsort((place, _DEPTH[kind[tied]], -end[tied], start[tied]))]
    return order


def _children_first(start: Ints, end: Ints, kind: _Kinds, thread: npt.NDArray[np.int16]) -> bool:
    """Say whether the file lists operators as they end (exporters of 2021) and not as they begin."""
    ops = np.flatnonzero(kind == Kind.OP)
    here, there = ops[:-1], ops[1:]
    together = thread[here] == thread[there]
    here, there = here[together], there[together]
    encloses = (start[there] < start[here]) & (end[there] >= end[here])
    enclosed = (start[there] > start[here]) & (end[there] <= end[here])
    return int(encloses.sum()) > int(enclosed.sum())


def repeated(columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
    """Mark rows that the file has twice: the same event with the same correlation id at the same time.

    Events without an id count only where the file shows that it repeats events: two short operators of the
    same name may well fall into the same microsecond.
    """
    twice = np.zeros(len(columns["start"]), np.bool_)
    candidates = _same_times(columns["start"], columns["end"])
    if not len(candidates):
        return twice
    keys = np.stack([columns[name][candidates].astype(np.int64) for name in _IDENTITY], axis=1)
    order = np.lexsort((candidates, *keys.T[::-1]))
    again = np.r_[False, (keys[order][1:] == keys[order][:-1]).all(axis=1)]
    copies = candidates[order[again]]
    copies = copies[columns["kind"][copies] != Kind.MEMORY]
    if (columns["correlation"][copies] > 0).any():
        twice[copies] = True
    return twice


def _same_times(start: Ints, end: Ints) -> _Rows:
    same = (start[1:] == start[:-1]) & (end[1:] == end[:-1])
    return np.flatnonzero(np.r_[False, same] | np.r_[same, False])
