"""Which blocks to compute again, for the least time, so that activations fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["BlockCost", "cheapest"]

UNITS = 2000
"""Steps that memory is counted in: savings are rounded down by at most 1/2000 of what has to be saved."""


@dataclass(frozen=True, slots=True)
class BlockCost:
    """What one block holds from its forward pass to its backward pass, and what computing it again takes.

    ``num_bytes``: activations that checkpointing sets free, over all calls in a step. ``live_bytes``: those of the
    largest call, which come back while that call is computed again. ``seconds``: forward time, over all calls.
    """

    name: str
    num_bytes: int
    live_bytes: int
    seconds: float


def cheapest(blocks: Sequence[BlockCost], total_bytes: int, target_bytes: int) -> list[BlockCost] | None:
    """Return the blocks to compute again in the least time so that ``target_bytes`` are never exceeded.

    The peak counted is everything held at the end of the forward pass less what the chosen blocks set free, plus the
    largest chosen block, which is alive again during its backward pass. None: no choice reaches the target.
    """
    if total_bytes <= target_bytes:
        return []
    best: list[BlockCost] | None = None
    for live in sorted({block.live_bytes for block in blocks}):
        needed = total_bytes - target_bytes + live
        chosen = _covering([b for b in blocks if b.live_bytes <= live and b.num_bytes], needed)
        if chosen is not None and (best is None or _seconds(chosen) < _seconds(best)):
            best = chosen
    return best


def peak_bytes(chosen: Sequence[BlockCost], total_bytes: int) -> int:
    """Return the peak that ``cheapest`` counts for a choice."""
    freed = sum(block.num_bytes for block in chosen)
    return total_bytes - freed + max((block.live_bytes for block in chosen), default=0)


def _seconds(blocks: Sequence[BlockCost]) -> float:
    return sum(block.seconds for block in blocks)


def _covering(blocks: Sequence[BlockCost], needed: int) -> list[BlockCost] | None:
    """Return the blocks of least time that free ``needed`` bytes together: a knapsack, exact to rounding."""
    if sum(block.num_bytes for block in blocks) < needed:
        return None
    unit = max(needed / UNITS, 1.0)
    goal = int(np.ceil(needed / unit))
    units = [min(int(block.num_bytes / unit), goal) for block in blocks]
    if sum(units) < goal:  # only rounding stands between the two
        return list(blocks)
    least = np.full(goal + 1, np.inf)  # seconds to free at least that many units
    least[0] = 0.0
    taken: list[NDArray[np.bool_]] = []
    for block, size in zip(blocks, units, strict=True):
        with_it = least[np.maximum(np.arange(goal + 1) - size, 0)] + block.seconds
        taken.append(with_it < least)
        least = np.minimum(least, with_it)
    chosen, left = [], goal
    for block, size, is_taken in zip(reversed(blocks), reversed(units), reversed(taken), strict=True):
        if left and is_taken[left]:
            chosen.append(block)
            left = max(left - size, 0)
    return chosen[::-1]
