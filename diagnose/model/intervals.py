"""Algebra of half-open intervals on one time line, in nanoseconds.

An ``Intervals`` holds sorted, disjoint, non-empty intervals as two int64 arrays, so every set operation is a
few vectorised passes over edges: O(n log n) for ``union``, O(n + m) up to the sort elsewhere. A rank makes hundreds of
them, mostly of few intervals: arrays' methods are called, which take a third less than NumPy's functions of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Floats, Ints, Mask, Rows

AnyInt = TypeVar("AnyInt", bound=np.integer[Any])


class Intervals(NamedTuple):
    """Sorted, disjoint, non-empty intervals [start, end), ns."""

    start: Ints
    end: Ints


_TABLE_PER_VALUE = 16  # numbers of one byte in a table, for each value; a larger one is no quicker than to sort
EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def span(start: int, end: int) -> Intervals:
    """Return the one interval from ``start`` to ``end``, or none where it is empty."""
    if end <= start:
        return EMPTY
    return Intervals(np.array([start], np.int64), np.array([end], np.int64))


def union(*parts: Intervals | tuple[Ints, Ints]) -> Intervals:
    """Return what at least one of the given intervals covers; the input may overlap and be unsorted."""
    filled = [Intervals(*p) for p in parts if len(p[0])]
    if not filled:
        return EMPTY
    start, end = _edges(filled)
    real = end > start
    if not real.all():
        start, end = start[real], end[real]
    if not len(start):
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    (opens,) = (start[1:] > reach[:-1]).nonzero()
    return Intervals(start[_led(0, opens + 1)], reach[_followed(opens, len(start) - 1)])


def _edges(parts: list[Intervals]) -> tuple[Ints, Ints]:
    """Return the starts and the ends of all parts; those of one part are not copied."""
    if len(parts) == 1:
        return np.asarray(parts[0].start, np.int64), np.asarray(parts[0].end, np.int64)
    starts, ends = [EMPTY.start, *(p.start for p in parts)], [EMPTY.end, *(p.end for p in parts)]
    return np.concatenate(starts), np.concatenate(ends)


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return what both cover."""
    few, many = (a, b) if len(a.start) <= len(b.start) else (b, a)
    if not len(few.start):
        return EMPTY
    first = many.end.searchsorted(few.start, side="right")
    num = np.maximum(many.start.searchsorted(few.end, side="left") - first, 0)
    own = np.arange(len(num)).repeat(num)
    if not len(own):
        return EMPTY
    other = np.arange(len(own)) + (first - (num.cumsum() - num)).repeat(num)
    start, end = np.maximum(few.start[own], many.start[other]), np.minimum(few.end[own], many.end[other])
    apart = start[1:] > end[:-1]  # pieces that touch are one
    if apart.all():
        return Intervals(start, end)
    return Intervals(start[_led(True, apart)], end[_followed(apart, True)])


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return what ``a`` covers and ``b`` does not."""
    if not len(a.start) or not len(b.start):
        return a
    low = min(int(a.start[0]), int(b.start[0]))
    high = max(int(a.end[-1]), int(b.end[-1]))
    holes = Intervals(_led(low, b.end), _followed(b.start, high))
    real = holes.end > holes.start
    return intersect(a, Intervals(holes.start[real], holes.end[real]))


def _led(value: int | bool, rest: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the array behind one value; ``np.append`` takes four times as long."""
    joined = np.empty(len(rest) + 1, rest.dtype)
    joined[0], joined[1:] = value, rest
    return joined


def _followed(rest: npt.NDArray[Any], value: int | bool) -> npt.NDArray[Any]:
    """Return the array before one value."""
    joined = np.empty(len(rest) + 1, rest.dtype)
    joined[:-1], joined[-1] = rest, value
    return joined


def total(a: Intervals) -> int:
    """Return the covered time, ns."""
    return int((a.end - a.start).sum())


def covered(a: Intervals, start: Ints, end: Ints) -> Ints:
    """Return, for each query interval [start, end), how many ns of it ``a`` covers; queries may overlap."""
    if not len(a.start):
        return np.zeros(len(start), np.int64)
    before = _led(0, (a.end - a.start).cumsum())

    def until(time: Ints) -> Ints:
        row = a.start.searchsorted(time, side="right")
        over = np.where(row > 0, a.end[np.maximum(row - 1, 0)] - time, 0)
        done: Ints = before[row] - np.maximum(over, 0)
        return done

    inside: Ints = np.maximum(until(np.asarray(end)) - until(np.asarray(start)), 0)
    return inside


def overlaps(a: Intervals, start: Ints, end: Ints) -> Mask:
    """Return which of the query intervals [start, end) have time in common with ``a``; queries may overlap."""
    if not len(a.start):
        return np.zeros(len(start), bool)
    following = a.end.searchsorted(start, side="right")  # the first interval that ends later
    found = following < len(a.end)
    np.minimum(following, len(a.end) - 1, out=following)
    found &= np.maximum(a.start[following], start) < end
    return found


def distinct(*values: npt.NDArray[AnyInt]) -> npt.NDArray[AnyInt]:
    """Return the different values of all arrays, in order; unlike ``np.unique`` it loads no masked arrays (14 ms)."""
    joined = values[0] if len(values) == 1 else np.concatenate(values)
    low, num = _range_of(joined)
    if 0 < num <= _TABLE_PER_VALUE * len(joined):
        return (np.flatnonzero(_table(joined, low, num)) + low).astype(joined.dtype)
    ordered = np.sort(joined, kind="stable")
    differs = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=differs[1:])
    return ordered[differs]


def _range_of(values: npt.NDArray[Any]) -> tuple[int, int]:
    """Return the least value, and how many whole numbers lie between it and the largest, both counted."""
    if not len(values):
        return 0, 0
    low = int(values.min())
    return low, int(values.max()) - low + 1


def _table(values: npt.NDArray[Any], low: int, num: int) -> Mask:
    """Return which of ``num`` whole numbers from ``low`` on are among the values: quicker than to sort these."""
    found = np.zeros(num, bool)
    found[np.subtract(values, low, dtype=np.int64)] = True
    return found


class Groups(NamedTuple):
    """Equal values put together."""

    value: npt.NDArray[Any]  # the different ones, in order
    first: Rows  # where each of them stands first
    of: Rows  # of each value, its group


def grouped(values: npt.NDArray[AnyInt]) -> Groups:
    """Return which values are equal; unlike ``np.unique`` it loads no masked arrays."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    differs = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=differs[1:])
    of = np.empty(len(ordered), np.intp)
    of[order] = np.cumsum(differs) - 1
    return Groups(ordered[differs], order[differs], of)


def rows_of_each(values: npt.NDArray[AnyInt]) -> dict[int, Rows]:
    """Return the rows of each different value, in order, by the value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begins = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    parts = np.split(order, begins) if len(order) else []
    return {int(values[rows[0]]): rows for rows in parts}


def contains(a: Intervals, times: Ints) -> Mask:
    """Return which times lie in one of the intervals."""
    if not len(a.start):
        return np.zeros(len(times), bool)
    at = a.start.searchsorted(times, side="right") - 1
    found: Mask = (at >= 0) & (times < a.end[np.maximum(at, 0)])
    return found


def among(values: npt.NDArray[AnyInt], others: npt.NDArray[AnyInt] | Sequence[int]) -> Mask:
    """Return which values are among the others; unlike ``np.isin`` it loads no masked arrays (14 ms)."""
    others = np.asarray(others)
    if not len(others):
        return np.zeros(len(values), bool)
    found: Mask
    # Few values are each looked for.
    if len(others) <= 4:
        found = values == others[0]
        for other in others[1:]:
            found |= values == other
        return found
    low, num = _range_of(others)
    if num <= _TABLE_PER_VALUE * (len(values) + len(others)):
        place = np.subtract(values, low, dtype=np.int64)
        found = (place >= 0) & (place < num)
        found &= _table(others, low, num)[np.where(found, place, 0)]
        return found
    ordered = np.sort(others, kind="stable")
    found = ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values
    return found


def quantiles(values: Ints | Floats, *shares: float) -> tuple[float, ...]:
    """Return the quantiles of at least one value, in between two values in proportion.

    Unlike ``np.quantile`` it loads no masked arrays.
    """
    return tuple(np.interp(np.array(shares) * (len(values) - 1), np.arange(len(values)), np.sort(values)).tolist())


def longer_than(a: Intervals, least_ns: int) -> Intervals:
    """Return the intervals of at least ``least_ns``."""
    keep = (a.end - a.start) >= least_ns
    return Intervals(a.start[keep], a.end[keep])
