"""Every idle nanosecond gets exactly one cause.

Each idle rule claims the intervals that it can account for; the rules run in their fixed order, and each takes what is
still unclaimed. So the pieces tile the idle time whatever the rules return: the invariant does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Rows
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import Intervals, intersect, subtract, total, union
from diagnose.tables.gaps import Gaps

__all__ = ["Causes", "assign"]


class Causes(NamedTuple):
    """The idle time in pieces, in time order; columns are parallel."""

    start: Ints
    end: Ints
    rule: npt.NDArray[np.int16]  # row of rules
    gap: Rows  # row of Gaps that the piece is part of
    rules: tuple[str, ...]

    def of(self, rule: str) -> Rows:
        """Return the rows of the pieces that a rule accounts for."""
        if rule not in self.rules:
            return np.empty(0, np.intp)
        return np.flatnonzero(self.rule == self.rules.index(rule))

    def totals(self) -> Mapping[str, int]:
        """Return idle ns by rule, the largest first; rules without any are left out."""
        sums = np.bincount(self.rule, (self.end - self.start).astype(np.float64), minlength=len(self.rules))
        order = np.argsort(-sums, kind="stable")
        return {self.rules[i]: round(sums[i]) for i in order if sums[i] > 0}


def assign(
    gaps: Gaps, idle: Intervals, claims: Iterable[tuple[str, Callable[[Intervals], Intervals]]], *, rest: str
) -> Causes:
    """Give each rule in turn what it claims of the time left; what no rule claims goes to ``rest``."""
    left = idle
    parts: list[tuple[str, Intervals]] = []
    for rule, claim in claims:
        mine = intersect(left, union(claim(left)))
        left = subtract(left, mine)
        parts.append((rule, mine))
        if not total(left):
            break
    parts.append((rest, left))
    rules = tuple(dict.fromkeys(rule for rule, _ in parts))
    start = np.concatenate([p.start for _, p in parts])
    end = np.concatenate([p.end for _, p in parts])
    which = np.concatenate([np.full(len(p.start), rules.index(rule), np.int16) for rule, p in parts])
    order = np.argsort(start, kind="stable")
    start, end, which = start[order], end[order], which[order]
    gap = np.searchsorted(gaps.start, start, side="right") - 1
    return Causes(start, end, which, gap, rules)
