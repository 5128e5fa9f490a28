"""One figure of a diagnosis beside that of another tool."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CrossCheck"]


class CrossCheck(NamedTuple):
    """One figure beside another tool's; shares are fractions, None where one side has no such figure."""

    measure: str
    ours: float | None
    by_their_definition: float | None  # computed from our events as the other tool defines it
    theirs: float | None
    explanation: str  # of the difference, by definition
    explained: bool = True  # whether our events give the other tool's figure by its definition
