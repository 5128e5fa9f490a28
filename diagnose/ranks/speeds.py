"""Whether everything takes longer on one rank than on others, by the mean time of each kernel or operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from diagnose.ranks.profile import RankProfile

__all__ = ["MIN_SLOWER", "MIN_SURELY_SLOWER", "slower"]

MIN_SLOWER = 1.05  # of a kernel's or an operator's mean time; equal devices differ by one or two per cent
MAX_BY_CHANCE = 1.1  # by which means of 40 calls that vary by a third differ
MIN_SURELY_SLOWER = 1.15  # beyond it, as some vary more
MIN_NAMES = 3  # kernels or operators of different names: fewer are not "everything"
MAX_COUNT_APART = 0.02  # as many launches: the same work
MIN_UNIFORM_SHARE = 0.75  # of the compared time, in names slowed by half as much as the median one, or not by chance


def slower(
    ranks: Sequence[RankProfile], what: Literal["kernels", "operators"], late: int, equals: Sequence[int]
) -> tuple[float, bool]:
    """Return by how much everything takes longer on the late rank, 1 where not everything does, and if it does more.

    What counts is the mean time of one kernel or operator of each name, which the amount of work of that name does not
    change: twice as many launches are more work, twice as long ones with as many launches are slower.
    """
    speeds = [getattr(p, what) for p in ranks]
    steps = [max(p.num_steps, 1) for p in ranks]
    own = speeds[late]
    ratios, weights, counts = [], [], []
    for name, count, total in zip(own.name.tolist(), own.count.tolist(), own.total_ns.tolist(), strict=True):
        means, nums = [], []
        for i in equals:
            at = np.searchsorted(speeds[i].name, name)
            if at < len(speeds[i].name) and speeds[i].name[at] == name:
                means.append(speeds[i].total_ns[at] / max(speeds[i].count[at], 1))
                nums.append(speeds[i].count[at] / steps[i])
        if means and np.median(means) > 0:
            ratios.append(total / max(count, 1) / float(np.median(means)))
            counts.append(count / steps[late] / max(float(np.median(nums)), 1 / steps[late]))
            weights.append(total)
    if not ratios:
        return 1.0, False
    ratio, weight, times = np.array(ratios), np.array(weights, np.float64), np.array(counts)
    order = np.argsort(ratio)
    middle = float(ratio[order][np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)])
    uniform = weight[ratio - 1 >= min((middle - 1) / 2, MAX_BY_CHANCE - 1)].sum() / weight.sum()
    more_work = float((times * weight).sum() / weight.sum()) > 1 + MAX_COUNT_APART
    if len(ratio) < MIN_NAMES or middle < MIN_SLOWER or uniform < MIN_UNIFORM_SHARE or more_work:
        return 1.0, more_work
    return middle, more_work
