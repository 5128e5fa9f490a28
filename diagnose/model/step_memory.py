"""What a step holds in memory by the line of the script that made it: for its backward pass, and for later steps."""

from __future__ import annotations

from typing import NamedTuple

from diagnose.model.locations import Where

__all__ = ["KeptByLine", "LeftByLine", "MemoryByLine"]


class KeptByLine(NamedTuple):
    """What the forward pass of one line makes for the backward pass."""

    where: Where
    num_bytes: int
    recompute_ns: float | None  # per step, to run the line again; None if the timing window does not show it


class LeftByLine(NamedTuple):
    """What one line leaves in each step that the next step ends with."""

    where: Where
    num_values: int
    num_bytes: int


class MemoryByLine(NamedTuple):
    """The memory of a step on one device by line, the most bytes first."""

    device: str
    peak_bytes: int  # that a step holds
    kept_bytes: int  # of all lines, listed or not
    kept: tuple[KeptByLine, ...]
    left: tuple[LeftByLine, ...]
