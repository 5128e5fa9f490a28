"""Whether the steps of a run get longer as it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

PARTS = 4  # of the run, one after the other, each compared with the one before
MIN_PART_STEPS = 8  # in each: their median shrugs off a long one
MIN_RUN_GROWTH = 0.1  # from the first part to the last: what equal steps differ by on a quiet machine


def grows(times: Sequence[float]) -> bool:
    """Return whether each part of the steps takes longer than the one before, the last by a tenth than the first."""
    num = len(times) // PARTS
    if num < MIN_PART_STEPS:
        return False
    level = [median(times[i * num : (i + 1) * num]) for i in range(PARTS)]
    return all(level[i] < level[i + 1] for i in range(PARTS - 1)) and level[-1] >= (1 + MIN_RUN_GROWTH) * level[0]
