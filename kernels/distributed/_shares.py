"""Cuts a number into whole parts in proportion to given rates."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["shares"]


def shares(total: int, rates: Sequence[float], *, limit: int | None = None) -> list[int]:
    """Return whole numbers, one for each rate, that sum to ``total`` and lie between one and ``limit``.

    Each is in proportion to its rate, but for rounding (the largest remainders are rounded up, the first of equals) and
    for the bounds.

    Raises:
        ValueError: a rate is not a positive number, or the bounds leave no such numbers.
    """
    num = len(rates)
    most = total if limit is None else limit
    if not num or not all(math.isfinite(r) and r > 0 for r in rates):
        raise ValueError(f"shares needs rates above zero, not {list(rates)}; leave out ranks that do nothing.")
    if not num <= total <= num * most:
        raise ValueError(f"{total} cannot be cut into {num} parts of at least one and at most {most}.")
    found = _bounded(total, rates, most)
    missing = total - sum(map(math.floor, found))
    by_remainder = sorted(range(num), key=lambda i: (math.floor(found[i]) - found[i], i))
    up = [i for i in by_remainder if math.floor(found[i]) < most][:missing]
    return [math.floor(part) + (i in up) for i, part in enumerate(found)]


def _bounded(total: int, rates: Sequence[float], most: int) -> list[float]:
    """Return parts in proportion, with those that leave the bounds set to them and the rest shared out anew."""
    fixed: dict[int, float] = {}
    while True:
        left = total - sum(fixed.values())
        speed = sum(rate for i, rate in enumerate(rates) if i not in fixed)
        found = [fixed.get(i, left * rate / speed if speed else 0.0) for i, rate in enumerate(rates)]
        below = {i: 1.0 for i, part in enumerate(found) if part < 1 and i not in fixed}
        above = {i: float(most) for i, part in enumerate(found) if part > most and i not in fixed}
        if not below and not above:
            return found
        # as for bounded proportions in general: fix the side that lacks more, and look again
        lacking = sum(1 - found[i] for i in below)
        exceeding = sum(found[i] - most for i in above)
        fixed |= below if lacking >= exceeding else above
