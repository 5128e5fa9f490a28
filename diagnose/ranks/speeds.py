"""Whether everything takes longer on one rank than on others, by the mean time of each kernel or operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from diagnose.model.arrays import Floats, Rows
from diagnose.ranks.profile import RankProfile

MIN_SLOWER = 1.05  # of a kernel's or an operator's mean time; equal devices differ by one or two per cent
MIN_SURELY_SLOWER = 1.15  # beyond it, as some vary more
MIN_NAMES = 3  # kernels or operators of different names: fewer are not "everything", nor one among others
MAX_COUNT_APART = 0.02  # as many launches: the same work
MIN_CLEARLY_SLOWER = 1.5  # beyond it everything has to be slower by about as much: of larger inputs only some is
MIN_UNIFORM_SHARE = 0.75  # of the compared time, in names slowed by half as much as the median one, or not by chance


class _Compared(NamedTuple):
    """The names that a late rank and its equals have in common; columns are parallel."""

    row: Rows  # of the late rank's
    ratio: Floats  # of its mean time to the others'
    times: Floats  # of its number of calls to the others'
    total_ns: Floats


def slower(
    ranks: Sequence[RankProfile], what: Literal["kernels", "operators"], late: int, equals: Sequence[int]
) -> tuple[float, bool]:
    """Return by how much everything takes longer on the late rank, 1 where not everything does, and if it does more.

    What counts is the mean time of one kernel or operator of each name: twice as many launches are more work, twice as
    long ones with as many launches are slower, as far as all of them are and as anything makes a machine that much
    slower: larger inputs make products longer and leave small operators as they are.
    """
    compared = _compared(ranks, what, late, equals)
    if not len(compared.ratio):
        return 1.0, False
    ratio, weight, times = compared.ratio, compared.total_ns, compared.times
    order = np.argsort(ratio)
    middle = float(ratio[order][np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)])
    at_least = (middle - 1) / 2
    # Means of 40 calls that vary by a third differ by a tenth.
    is_slow = ratio - 1 >= (at_least if middle > MIN_CLEARLY_SLOWER else min(at_least, 0.1))
    uniform = weight[is_slow].sum() / weight.sum()
    more_work = float((times * weight).sum() / weight.sum()) > 1 + MAX_COUNT_APART
    rest = np.arange(len(ratio)) != weight.argmax()
    # And of the time in all names but the one that takes most: else it is that one.
    is_one = weight[rest & is_slow].sum() < 0.5 * weight[rest].sum()
    is_uneven = middle > MIN_CLEARLY_SLOWER and uniform < MIN_UNIFORM_SHARE
    # By which clocks, heat and neighbours slow a device or a host: beyond it the inputs are larger.
    is_much = middle > 3.0 and (what == "operators" or not is_one)
    if len(ratio) >= MIN_NAMES and (is_much or (is_uneven and not is_one)):
        return 1.0, True  # as many calls, of more each
    if len(ratio) < MIN_NAMES or middle < MIN_SLOWER or uniform < MIN_UNIFORM_SHARE or more_work or is_one:
        return 1.0, more_work
    return middle, more_work


def input_ratio(ranks: Sequence[RankProfile], late: int, equals: Sequence[int]) -> float:
    """Return how many times as large inputs the late rank computes on, 1 if that is not known.

    Kernels on equal inputs run in as many blocks of threads, and operators read as many elements.
    """
    for name in ("blocks", "elements"):
        others = float(np.median([getattr(ranks[i], name) for i in equals]))
        if others > 0 and getattr(ranks[late], name) > 0:
            return float(getattr(ranks[late], name)) / others
    return 1.0


def slower_kernel(ranks: Sequence[RankProfile], late: int, equals: Sequence[int]) -> tuple[str, float, float]:
    """Return the kernel that makes most of a difference, its ns a step and its factor; ("", 0, 1) without one.

    It is launched as often as on the other ranks, and takes longer there.
    """
    compared = _compared(ranks, "kernels", late, equals)
    more = compared.total_ns * (1 - 1 / compared.ratio) / max(ranks[late].num_steps, 1)
    more[(compared.ratio < MIN_SURELY_SLOWER) | (np.abs(compared.times - 1) > MAX_COUNT_APART)] = 0.0
    names = ranks[late].kernel_names
    if len(more) < MIN_NAMES or not more.max() or not names:
        return "", 0.0, 1.0
    most = int(more.argmax())
    return names[int(compared.row[most])], float(more[most]), float(compared.ratio[most])


def _compared(
    ranks: Sequence[RankProfile], what: Literal["kernels", "operators"], late: int, equals: Sequence[int]
) -> _Compared:
    own, steps = getattr(ranks[late], what), max(ranks[late].num_steps, 1)
    means, counts = (np.full((len(equals), len(own.name)), np.nan) for _ in range(2))
    for i, other in enumerate(ranks[other] for other in equals):
        speeds = getattr(other, what)
        at = np.searchsorted(speeds.name, own.name)
        mine = np.flatnonzero(at < len(speeds.name))
        mine = mine[speeds.name[at[mine]] == own.name[mine]]
        means[i, mine] = speeds.total_ns[at[mine]] / np.maximum(speeds.count[at[mine]], 1)
        counts[i, mine] = speeds.count[at[mine]] / max(other.num_steps, 1)
    row = np.flatnonzero((means > 0).any(axis=0))
    usual, num = np.nanmedian(means[:, row], axis=0), np.nanmedian(counts[:, row], axis=0)
    row, usual, num = row[usual > 0], usual[usual > 0], num[usual > 0]
    ratio = own.total_ns[row] / np.maximum(own.count[row], 1) / usual
    times = own.count[row] / steps / np.maximum(num, 1 / steps)
    return _Compared(row, ratio, times, own.total_ns[row].astype(np.float64))
