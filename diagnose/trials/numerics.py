"""Whether a changed script still computes the same: the losses of its runs against the baseline's, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal, NamedTuple, TypeAlias

from diagnose.changes.common.change import Promise

__all__ = ["Parity", "compare_losses", "norms_apart", "of_first_epoch", "of_other_draws"]

Numerics: TypeAlias = Literal["identical", "within", "drifted", "unknown"]

COMPARED_LOSSES = 30  # from the first on: later ones differ by the chaos of training, whatever the cause
MIN_LOSSES = 3  # fewer show nothing
# Median relative distance of the losses that a promise allows; roundings grow about tenfold in the first steps.
ALLOWED: dict[Promise, float] = {"identical": 1e-5, "rounding": 1e-3, "reduced": 2e-2}
WORST_STEP = 10.0  # times the allowed median: no single loss may be further away
SPREAD = 3.0  # times the distance between two runs of the baseline itself
OTHER_DRAWS = (
    "Other random numbers are drawn with the change, by samples or for dropout: losses cannot show whether the rest "
    "stays the same."
)
LATER_EPOCHS = (
    "Later epochs draw other random numbers with kept workers: only the {num} losses of the first are compared."
)
ONLY_FIRST = "Later epochs draw other random numbers with kept workers, so only the first can be compared."
_ORDER: tuple[Numerics, ...] = ("identical", "within", "unknown", "drifted")


class Parity(NamedTuple):
    """What the losses of all runs with a change show: what the worst of them does."""

    numerics: Numerics
    drift: float | None = None  # median relative distance
    worst_drift: float | None = None  # of the loss that is furthest away
    limits: tuple[float, float] | None = None  # of both
    note: str = ""
    run: int = 0  # which of the runs it was


class _Distance(NamedTuple):
    middle: float
    worst: float
    step: int  # of the worst, from 0


def compare_losses(
    baselines: Sequence[Sequence[float]], variants: Sequence[Sequence[float]], promise: Promise
) -> Parity:
    """Evaluate the losses of every changed run; where the baseline differs from itself, its own spread is allowed too.

    Identical means bit by bit, over every loss that both have. Within means that over the first 30 losses the median
    distance is no larger than the change promises, and the largest no more than ten times that. The result is that of
    the run which is furthest from the baseline.
    """
    first = baselines[0]
    own = [_distance(first, other) for other in baselines[1:]]
    own_middle, own_worst = (max((getattr(one, name) for one in own), default=0.0) for name in ("middle", "worst"))
    limits = (max(ALLOWED[promise], SPREAD * own_middle), max(WORST_STEP * ALLOWED[promise], SPREAD * own_worst))
    each = [_of_run(first, losses, limits, i) for i, losses in enumerate(variants)]
    worst = max(each, key=_how_far)
    notes = [worst.note] if worst.note else []
    if notes and len(each) > 1:
        alike = sum(one.numerics == worst.numerics for one in each)
        notes = [f"In {alike} of {len(each)} runs with the change: {worst.note}"]
    if own_worst and worst.numerics in ("within", "drifted"):
        notes.append(f"Unchanged, it differs from itself by {own_middle:.1e} (median loss); that is allowed for.")
    return worst._replace(note=" ".join(notes))


def of_first_epoch(
    parity: Parity,
    baselines: Sequence[Sequence[float]],
    variants: Sequence[Sequence[float]],
    promise: Promise,
    num: int,
) -> Parity:
    """Return what losses show where those after the first ``num`` rest on other random numbers."""
    if parity.numerics != "drifted" or parity.drift is None:
        return parity
    first = compare_losses([each[:num] for each in baselines], [each[:num] for each in variants], promise)
    if first.numerics == "unknown":
        return parity._replace(numerics="unknown", note=f"{ONLY_FIRST} {first.note}")
    note = LATER_EPOCHS.format(num=num)
    return first._replace(note=" ".join([*([first.note] if first.note else []), note]))


def of_other_draws(parity: Parity) -> Parity:
    """Return what losses show where other random numbers were drawn: nothing, unless one is not finite."""
    if parity.numerics != "drifted" or parity.drift is None:
        return parity
    return parity._replace(numerics="unknown", note=OTHER_DRAWS)


def norms_apart(baseline: Sequence[float], variant: Sequence[float]) -> float | None:
    """Return the median relative distance of the first steps' gradient norms; infinite where only one is finite.

    None where either has none: an optimizer that is not torch's, or sparse gradients.
    """
    if not baseline or not variant:
        return None
    if any(math.isfinite(a) != math.isfinite(b) for a, b in zip(baseline, variant, strict=False)):
        return math.inf
    return _distance(baseline, variant).middle


def _how_far(parity: Parity) -> tuple[int, float]:
    if parity.drift is None or parity.worst_drift is None or parity.limits is None:
        return _ORDER.index(parity.numerics), math.inf
    return _ORDER.index(parity.numerics), max(parity.drift / parity.limits[0], parity.worst_drift / parity.limits[1])


def _of_run(first: Sequence[float], losses: Sequence[float], limits: tuple[float, float], run: int) -> Parity:
    num = min(len(first), len(losses))
    if num < MIN_LOSSES:
        return Parity("unknown", note=_too_few(len(first), len(losses)), run=run)
    bad = next((i for i in range(num) if not math.isfinite(losses[i]) and math.isfinite(first[i])), None)
    if bad is not None:
        return Parity("drifted", note=f"Loss {bad + 1} is not finite; unchanged it is.", run=run)
    found = _distance(first, losses)
    if all(_same(first[i], losses[i]) for i in range(num)):
        return Parity("identical", found.middle, found.worst, limits, run=run)
    note = ""
    if found.middle > limits[0]:
        note = f"The median loss is {found.middle:.1e} away, of {limits[0]:.1e} allowed."
    elif found.worst > limits[1]:
        note = f"Loss {found.step + 1} is {found.worst:.1e} away, of {limits[1]:.1e} allowed."
    return Parity("drifted" if note else "within", found.middle, found.worst, limits, note, run)


def _too_few(unchanged: int, changed: int) -> str:
    """Return why so many losses are not compared."""
    if not unchanged and not changed:
        return "No loss was seen: backward was called on no scalar."
    seen = f"{unchanged} unchanged, {changed} with the change"
    return f"Too few losses to compare: {seen}, at least {MIN_LOSSES} are needed."


def _distance(a: Sequence[float], b: Sequence[float]) -> _Distance:
    """Return how far ``b`` is from ``a``, relative to it.

    For a single loss that is relative to the median one at least: a loss near 0 has no relative distance to speak of.
    """
    pairs = list(zip(a[:COMPARED_LOSSES], b[:COMPARED_LOSSES], strict=False))
    steps = [i for i, (x, y) in enumerate(pairs) if math.isfinite(x) and math.isfinite(y)]
    if not steps:
        return _Distance(0.0, 0.0, 0)
    usual = median(abs(pairs[i][0]) for i in steps)
    apart = {i: abs(pairs[i][0] - pairs[i][1]) for i in steps}
    worst = {i: apart[i] / max(abs(pairs[i][0]), usual, 1e-12) for i in steps}
    step = max(worst, key=worst.__getitem__)
    return _Distance(median(apart[i] / max(abs(pairs[i][0]), 1e-12) for i in steps), worst[step], step)


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))
