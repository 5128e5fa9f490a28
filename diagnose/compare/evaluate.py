"""Whether one set of runs is slower than another, by how much equal runs differ, or why that cannot be decided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from diagnose.model.statistics import RunShift, run_shift, runs_needed
from diagnose.reports.format import growth, percent

__all__ = ["DEFAULT_TOLERANCE", "Evaluation", "Outcome", "evaluate", "no_evaluation"]

Outcome: TypeAlias = Literal["slower", "faster", "same", "undecided", "not comparable"]

DEFAULT_TOLERANCE = 0.05
MIN_BASELINE_RUNS = 2  # one has no spread
MAX_CHANCE = 0.025  # of the order of equal runs, in one direction; three runs a side reach one in 20 at best
MIN_ORDERS = 20  # three runs and three: with fewer, equal runs are too often in the same order by chance
SPELL = 1.5  # with so few runs: slow spells of shared machines outlast a run and make it up to 1.4 times as long
MAX_HIDDEN = 1.25  # "the same" has to exclude a longer step than this
MIN_ADVISED_RUNS, MAX_ADVISED_RUNS = 3, 20


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the runs show."""

    outcome: Outcome
    shift: RunShift | None  # None where too few runs have no spread
    reason: str = ""  # why it is undecided
    remedy: str = ""  # what to record so that it can be decided

    def excludes_slower(self, tolerance: float) -> bool:
        """Return whether the step is no slower than the tolerance allows, with any larger slowdown excluded."""
        return (
            self.shift is not None and self.shift.ratio <= 1 + tolerance and self.shift.high <= _limit(tolerance)
        ) or self.outcome in ("same", "faster")


def no_evaluation() -> Evaluation:
    """Return that of two sides which are not alike."""
    return Evaluation("not comparable", None)


def evaluate(before: Sequence[float], after: Sequence[float], tolerance: float) -> Evaluation:
    """Compare the steps of independent runs, one number each; a difference within the tolerance is none.

    Slower or faster has to be shown twice: the whole interval lies beyond the tolerance, and equal runs would hardly
    come in such an order.
    """
    if len(before) < MIN_BASELINE_RUNS:
        return Evaluation(
            "undecided",
            None,
            f"How far equal runs differ is unknown: the baseline is {len(before)} run.",
            f"Record at least {MIN_BASELINE_RUNS} runs of the baseline, better {MIN_ADVISED_RUNS} of each side; "
            "diagnose gate --update writes several into one file.",
        )
    shift = run_shift(before, after)
    least = shift.low if shift.ratio > 1 else 1 / shift.high
    if least > 1 + tolerance and _is_no_chance(shift):
        return Evaluation("slower" if shift.ratio > 1 else "faster", shift)
    limit = _limit(tolerance)
    if max(shift.ratio, 1 / shift.ratio) <= 1 + tolerance and shift.high <= limit and shift.low >= 1 / limit:
        return Evaluation("same", shift)
    num_runs = max(len(before), len(after))
    return Evaluation("undecided", shift, _why_undecided(shift, tolerance), _what_to_record(shift, tolerance, num_runs))


def _limit(tolerance: float) -> float:
    return max(1 + tolerance, MAX_HIDDEN)


def _is_no_chance(shift: RunShift) -> bool:
    if shift.num_orders < MIN_ORDERS:
        return shift.gap > SPELL
    return shift.order_chance <= max(MAX_CHANCE, 1 / shift.num_orders)


def _why_undecided(shift: RunShift, tolerance: float) -> str:
    word, ratio = ("slower", shift.ratio) if shift.ratio > 1 else ("faster", 1 / shift.ratio)
    if ratio > 1 + tolerance and shift.gap > 1 and shift.num_orders < MIN_ORDERS:
        return f"It looks {word}, but so few runs may all have met the same spell of the machine."
    if ratio > 1 + tolerance:
        return f"It looks {word}, but equal runs differ by about {percent(shift.spread)}, which may be all of it."
    return f"Equal runs differ by about {percent(shift.spread)}, so {growth(shift.high - 1)} slower is not excluded."


def _what_to_record(shift: RunShift, tolerance: float, num_runs: int) -> str:
    ratio = max(shift.ratio, 1 / shift.ratio)
    apparent = ratio / (1 + tolerance)
    needed = runs_needed(shift.spread, apparent if apparent > 1 else MAX_HIDDEN)
    advised = max(needed, MIN_ADVISED_RUNS, num_runs + 1 if math.comb(2 * num_runs, num_runs) >= MIN_ORDERS else 0)
    if advised > MAX_ADVISED_RUNS:
        return (
            f"More than {MAX_ADVISED_RUNS} runs a side would be needed: use a quieter machine or a larger --tolerance."
        )
    return f"Record {advised:.0f} runs of each side."
