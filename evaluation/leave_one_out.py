"""Scores thresholds on traces that they were not fitted on: one group of traces at a time is left out.

For each group (traces of one source, one script or one pair) the thresholds of ``diagnose.tables.thresholds`` are
chosen from a grid by the graded rows of all other groups, and the left-out rows are judged with them. Equally good
points are a plateau, of which the one nearest to its middle is taken. What a rule claims and what a finding is worth
stay as they are: they have no threshold of this grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Diagnosis
    from diagnose.tables.thresholds import Thresholds

__all__ = ["Graded", "LeftOut", "leave_one_out"]

GRID: Mapping[str, tuple[float, ...]] = {
    "significant_idle": (0.08, 0.1, 0.12, 0.14, 0.15, 0.16, 0.17, 0.18, 0.2, 0.22, 0.25),
    "shallow_depth": (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0, 48.0),
    "cold_share": (0.3, 0.4, 0.5, 0.6, 0.7),
}


@dataclass(frozen=True)
class Graded:
    """One labelled trace, as diagnosed."""

    name: str
    group: str
    diagnosis: Diagnosis
    verdicts: tuple[str, ...]  # that the label accepts
    causes: tuple[str, ...]


@dataclass(frozen=True)
class LeftOut:
    """What came of the rows that were left out once each."""

    num: int
    num_groups: int
    wrong: tuple[str, ...]  # names
    chosen: Mapping[str, tuple[float, float]]  # by threshold: the lowest and the highest that was chosen


def leave_one_out(rows: Sequence[Graded]) -> LeftOut:
    """Return how many rows are right with thresholds that were fitted without their group."""
    from diagnose.tables.thresholds import THRESHOLDS

    points = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    right = np.array([[_is_right(row, replace(THRESHOLDS, **point)) for row in rows] for point in points])
    place = np.array([[GRID[name].index(point[name]) for name in GRID] for point in points], np.float64)
    groups = np.array([row.group for row in rows])
    wrong: list[str] = []
    chosen: list[int] = []
    for group in dict.fromkeys(groups.tolist()):
        mine = groups == group
        score = right[:, ~mine].sum(1)
        plateau = np.flatnonzero(score == score.max())
        off = np.abs(place[plateau] - np.median(place[plateau], axis=0)).sum(1)
        best = int(plateau[int(off.argmin())])
        chosen.append(best)
        wrong += [rows[i].name for i in np.flatnonzero(mine & ~right[best])]
    ranges = {name: _range([points[i][name] for i in chosen]) for name in GRID}
    return LeftOut(len(rows), len(chosen), tuple(wrong), ranges)


def _range(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _is_right(row: Graded, at: Thresholds) -> bool:
    from diagnose.pipeline.rank import verdict

    d = row.diagnosis
    found = verdict(d.queue, d.partition, d.idle_by_cause, at)
    return found in row.verdicts and (d.dominant or "") in row.causes
