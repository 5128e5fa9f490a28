"""Whether a changed script still computes the same: its losses against the baseline's, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal, NamedTuple, TypeAlias

from diagnose.changes.common.change import Promise

__all__ = ["Parity", "compare", "norms_apart"]

Numerics: TypeAlias = Literal["identical", "within", "drifted", "unknown"]

COMPARED = 30  # losses from the first on: later ones differ by the chaos of training, whatever the cause
LEAST = 3  # losses that tell anything
# Median relative distance of the losses that a promise allows; roundings grow about tenfold in the first steps.
ALLOWED: dict[Promise, float] = {"identical": 1e-5, "rounding": 1e-3, "reduced": 2e-2}
SPREAD = 3.0  # times the distance between two runs of the baseline itself


class Parity(NamedTuple):
    """What the losses say."""

    numerics: Numerics
    drift: float | None  # median relative distance
    note: str


def compare(baselines: Sequence[Sequence[float]], variant: Sequence[float], promise: Promise) -> Parity:
    """Judge a variant's losses; where the baseline differs from itself, its own spread is allowed too.

    Identical means bit by bit, over every loss that both have. Within means a median distance, over the first 30
    losses, no larger than the change promises.
    """
    first = baselines[0]
    num = min(len(first), len(variant))
    if num < LEAST:
        return Parity("unknown", None, "Too few losses were seen: backward was called on no scalar.")
    bad = next((i for i in range(num) if not math.isfinite(variant[i]) and math.isfinite(first[i])), None)
    if bad is not None:
        return Parity("drifted", None, f"Loss {bad + 1} is not finite; unchanged it is.")
    drift = _distance(first, variant)
    if all(_same(first[i], variant[i]) for i in range(num)):
        return Parity("identical", drift, "")
    own = max((_distance(first, other) for other in baselines[1:]), default=0.0)
    note = f"Unchanged, it differs from itself by {own:.1e} (median loss): parity is judged by that." if own else ""
    allowed = max(ALLOWED[promise], SPREAD * own)
    return Parity("within" if drift <= allowed else "drifted", drift, note)


def norms_apart(baseline: Sequence[float], variant: Sequence[float]) -> float | None:
    """Return the median relative distance of the first steps' gradient norms; infinite where only one is finite.

    None where either has none: an optimizer that is not torch's, or sparse gradients.
    """
    if not baseline or not variant:
        return None
    if any(math.isfinite(a) != math.isfinite(b) for a, b in zip(baseline, variant, strict=False)):
        return math.inf
    return _distance(baseline, variant)


def _distance(a: Sequence[float], b: Sequence[float]) -> float:
    pairs = [(x, y) for x, y in zip(a[:COMPARED], b[:COMPARED], strict=False) if math.isfinite(x) and math.isfinite(y)]
    return median(abs(x - y) / max(abs(x), 1e-12) for x, y in pairs) if pairs else 0.0


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))
