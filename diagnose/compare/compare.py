"""What differs between two sides: the step, where it goes, what was found, and the kernels."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal, TypeAlias

import numpy as np

from diagnose.compare.setup import Difference, differences
from diagnose.compare.sides import Measure, Side, measure_of
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.statistics import RunShift, run_shift, runs_needed, speed_up
from diagnose.reports.format import growth, percent

# Whether one set of runs is slower than another, by how much equal runs differ, or why that cannot be decided.

Outcome: TypeAlias = Literal["slower", "faster", "same", "undecided", "not comparable"]

MIN_ORDERS = 20  # three runs and three: with fewer, equal runs are too often in the same order by chance
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


def evaluate(before: Sequence[float], after: Sequence[float], tolerance: float) -> Evaluation:
    """Compare the steps of independent runs, one number each; a difference within the tolerance is none.

    Slower or faster has to be shown twice: the whole interval lies beyond the tolerance, and equal runs would hardly
    come in such an order.
    """
    if len(before) < 2:  # one has no spread
        return Evaluation(
            "undecided",
            None,
            f"How far equal runs differ is unknown: the baseline is {len(before)} run.",
            f"Record at least 2 runs of the baseline, better {MIN_ADVISED_RUNS} of each side; "
            "diagnose gate --update writes several into one file.",
        )
    shift = run_shift(before, after)
    least = shift.low if shift.ratio > 1 else 1 / shift.high
    if shift.num_orders < MIN_ORDERS:
        # With so few runs: slow spells of shared machines outlast a run and make it up to 1.4 times as long.
        is_no_chance = shift.gap > 1.5
    else:
        # Of the order of equal runs, in one direction; three runs a side reach one in 20 at best.
        is_no_chance = shift.order_chance <= max(0.025, 1 / shift.num_orders)
    if least > 1 + tolerance and is_no_chance:
        return Evaluation("slower" if shift.ratio > 1 else "faster", shift)
    limit = _limit(tolerance)
    if max(shift.ratio, 1 / shift.ratio) <= 1 + tolerance and shift.high <= limit and shift.low >= 1 / limit:
        return Evaluation("same", shift)
    num_runs = max(len(before), len(after))
    return Evaluation("undecided", shift, _why_undecided(shift, tolerance), _what_to_record(shift, tolerance, num_runs))


def _limit(tolerance: float) -> float:
    return max(1 + tolerance, MAX_HIDDEN)


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


MIN_LISTED_SHARE = 0.005  # of the longer step: smaller differences of a part are not listed


@dataclass(frozen=True, slots=True)
class Change:
    """One part of the recorded step, before and after; ns per step."""

    name: str
    before_ns: float
    after_ns: float
    note: str = ""

    @property
    def by_ns(self) -> float:
        """Return by how much it grew."""
        return self.after_ns - self.before_ns


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of a step; every list holds the largest differences first."""

    before: Side
    after: Side
    evaluation: Evaluation
    differences: tuple[Difference, ...]  # in what step times depend on besides the code
    measured: Measure  # which steps were compared
    steps_ns: tuple[float, float]  # of that measure: the median over the runs' mean steps
    ratio: float  # of steps_ns, after over before
    interval: tuple[float, float]  # 95 %, from the spread of the runs; of the steps where there are too few runs
    tolerance: float
    parts: tuple[Change, ...]  # of the partition, compute and idle among them
    causes: tuple[Change, ...]  # of idle, by rule; without a device of the host's time
    findings: tuple[Change, ...]
    kernels: tuple[Change, ...]
    verdicts: tuple[str, str]  # of the diagnoses
    ignored: tuple[str, ...] = ()  # rules whose findings were left out as asked

    @property
    def is_slower(self) -> bool:
        """Return whether the step is longer for certain."""
        return self.evaluation.outcome == "slower"

    @property
    def is_faster(self) -> bool:
        """Return whether the step is shorter for certain."""
        return self.evaluation.outcome == "faster"

    def without_findings(self, rules: Collection[str]) -> Comparison:
        """Return the comparison without the findings of these rules; every other number stays."""
        left = tuple(change for change in self.findings if change.name not in rules)
        return replace(self, findings=left, ignored=tuple(sorted(rules)))


def compare(
    before: Side,
    after: Side,
    *,
    tolerance: float = 0.05,
    allow_differences: bool = False,
    of_changes: bool = False,
) -> Comparison:
    """Compare two sides; what is not alike is evaluated, and its parts compared, with ``allow_differences`` only.

    With ``of_changes`` differences that may be the change itself are no obstacle.
    """
    a, b = before.diagnosis, after.diagnosis
    measure = measure_of(before, after)
    each = before.run_steps(measure), after.run_steps(measure)
    unlike = differences(before.setups, after.setups)
    comparable = allow_differences or all(of_changes and each.may_be_the_change for each in unlike)
    evaluation = evaluate(*each, tolerance) if comparable else Evaluation("not comparable", None)
    steps_ns = median(each[0]), median(each[1])
    min_ns = MIN_LISTED_SHARE * max(a.step_ns, b.step_ns)
    return Comparison(
        before=before,
        after=after,
        evaluation=evaluation,
        differences=unlike,
        measured=measure,
        steps_ns=steps_ns,
        ratio=steps_ns[1] / steps_ns[0],
        interval=_interval(before, after, measure, evaluation),
        tolerance=tolerance,
        parts=_changes(_parts(a), _parts(b), min_ns) if comparable else (),
        causes=_changes(_causes(a), _causes(b), min_ns) if comparable else (),
        findings=_changes(_lost(a), _lost(b), min_ns) if comparable else (),
        kernels=_kernels(before, after, min_ns) if comparable else (),
        verdicts=(a.verdict, b.verdict),
    )


def _interval(before: Side, after: Side, measure: Measure, evaluation: Evaluation) -> tuple[float, float]:
    """Return the interval of the ratio; without enough runs that of the steps, which excludes nothing."""
    if evaluation.shift is not None:
        return evaluation.shift.low, evaluation.shift.high
    times = [[run.steps(measure) for run in side.runs] for side in (after, before)]
    within = speed_up(times[0], times[1], noise=0.0)  # the later step over the earlier one
    return within.low, within.high


def _parts(d: Diagnosis) -> Mapping[str, float]:
    if d.partition is None:
        return {}
    p = d.partition
    shares = {
        "compute": p.compute,
        "exposed communication": p.exposed_communication,
        "exposed copies": p.exposed_copy,
        "idle": p.idle,
    }
    return {name: share * d.step_ns for name, share in shares.items()}


def _causes(d: Diagnosis) -> Mapping[str, float]:
    return {rule: share * d.step_ns for rule, share in (d.idle_by_cause or d.host_by_cause).items()}


def _lost(d: Diagnosis) -> Mapping[str, float]:
    return {f.rule: f.lost_ns for f in d.findings if np.isfinite(f.lost_ns)}


def _changes(before: Mapping[str, float], after: Mapping[str, float], min_ns: float) -> tuple[Change, ...]:
    names = dict.fromkeys([*before, *after])
    return _largest([Change(name, before.get(name, 0.0), after.get(name, 0.0)) for name in names], min_ns)


def _kernels(before: Side, after: Side, min_ns: float) -> tuple[Change, ...]:
    if not before.kernels or not after.kernels:
        return ()
    found = []
    for name in dict.fromkeys([*before.kernels, *after.kernels]):
        a, b = before.kernels.get(name), after.kernels.get(name)
        if a is None:
            note = "appeared"
        elif b is None:
            note = "vanished"
        else:
            note = "" if np.isclose(a.calls, b.calls) else f"{a.calls:.0f} to {b.calls:.0f} calls a step"
        found.append(Change(name, a.time_ns if a else 0.0, b.time_ns if b else 0.0, note))
    return _largest(found, min_ns)


def _largest(changes: list[Change], min_ns: float) -> tuple[Change, ...]:
    return tuple(sorted((c for c in changes if abs(c.by_ns) >= min_ns), key=lambda c: -abs(c.by_ns)))
