"""What was matched across ranks: every collective with the part that each of them has of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Floats, Ints
from diagnose.ranks.profile import CollectiveKind, Group, RankProfile

__all__ = ["Matches"]


@dataclass(frozen=True, slots=True)
class Matches:
    """All matched collectives; a part is what one rank has of one of them.

    Columns of parts are parallel and sorted by collective, then by rank; ``first`` are the rows at which the parts of
    each collective begin.
    """

    rank: npt.NDArray[np.intp]  # index in the list of ranks
    row: npt.NDArray[np.intp]  # of that rank's Collectives
    match: npt.NDArray[np.intp]  # number of the collective
    first: npt.NDArray[np.intp]
    kinds: tuple[CollectiveKind, ...]  # of each collective, as its first rank has it
    groups: tuple[Group, ...]  # of each collective; without members in the trace those that took part
    clock: Floats  # what to add to a rank's times to get those of the first rank of its island, ns; NaN: not known
    residual_ns: float  # median distance of the ends of one collective, clocks laid over each other
    num_unmatched: int  # collectives of ranks that were compared that no other rank has
    num_disagreeing: int  # with the same number in a group, and another name or size
    num_sampled: int  # of groups of which too few members are among the ranks: not among these collectives
    apart: tuple[int, ...]  # indices of ranks whose ends agree with nobody's

    @property
    def num(self) -> int:
        """Return the number of collectives."""
        return len(self.first)

    def least(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the smallest value of the parts of each collective."""
        return np.minimum.reduceat(values, self.first) if self.num else np.zeros(0, np.int64)

    def column(self, ranks: Sequence[RankProfile], name: str) -> Ints:
        """Return a column of the ranks' Collectives, for each part."""
        return self.values([getattr(p.collectives, name) for p in ranks], self.row)

    def values(self, columns: Sequence[npt.NDArray[Any]], row: npt.NDArray[Any]) -> Ints:
        """Return for each part a value of its rank's column, the one in the given row."""
        if not len(self.rank):
            return np.zeros(0, np.int64)
        begin = np.cumsum([0, *map(len, columns)])
        values: Ints = np.concatenate(columns)[begin[self.rank] + row].astype(np.int64)
        return values
