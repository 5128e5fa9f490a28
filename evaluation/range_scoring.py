"""Whether what a change was measured to save lies within the range that a report states; shares of the step.

The measured saving itself has to lie there, not just an end of its interval: an interval that is wide enough overlaps
every range. Where the interval covers the whole range and is wider, the runs decide nothing, and the row counts for
neither side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from diagnose.model.intervals import quantiles
from diagnose.model.statistics import speed_up

if TYPE_CHECKING:
    from diagnose.model.arrays import Floats
    from diagnose.model.diagnosis import Diagnosis, Prescription

__all__ = [
    "UNSEEN",
    "Outcome",
    "RangeRow",
    "Saving",
    "mean_saving",
    "outcome",
    "stated_range",
    "summary",
    "table",
    "usual_saving",
]

Outcome: TypeAlias = Literal["within", "above", "below", "wrong sign", "undecided", "no core"]

UNSEEN = 0.01  # of the step: a saving that is so little outside of its range is within it, as far as runs show
WITHIN_BAR = 0.9  # of the rows that are decided
# Of a recording: more, and the report itself states that it was made on a busy machine, whose steps are others.
MAX_CPU_WAIT = 0.2
OPEN: tuple[Outcome, ...] = ("undecided", "no core")
RESAMPLES = 1000
COVERAGE = 0.95


@dataclass(frozen=True)
class Saving:
    """What runs in turns showed that a change saves, as a share of the step without it, with its interval."""

    share: float
    low: float
    high: float


@dataclass(frozen=True)
class RangeRow:
    """One change of one script."""

    name: str
    change: str  # the prescription's id
    made: str  # how: repaired, patch
    step_ms: float  # without a profiler, as it is
    stated: tuple[float, float]
    measured: Saving
    cpu_wait: float = 0.0  # share of the recording in which the training thread had no core

    @property
    def outcome(self) -> Outcome:
        """Return where the measured saving lies; nothing is said of a recording that had no core for long."""
        return "no core" if self.cpu_wait > MAX_CPU_WAIT else outcome(self.stated, self.measured)

    @property
    def width(self) -> float:
        """Return how wide the stated range is, as a share of the step."""
        return self.stated[1] - self.stated[0]


def outcome(stated: tuple[float, float], measured: Saving) -> Outcome:
    """Return where a measured saving lies beside the stated range.

    It has the wrong sign where the change made the step longer for certain, although the range has something to save.
    """
    low, high = stated[0] - UNSEEN, stated[1] + UNSEEN
    if measured.high < -UNSEEN and stated[1] > 0:
        return "wrong sign"
    if measured.low < low and measured.high > high:
        return "undecided"
    if measured.share < low:
        return "below"
    return "above" if measured.share > high else "within"


def stated_range(diagnosis: Diagnosis, prescription: Prescription) -> tuple[float, float]:
    """Return the least and the most that a change is stated to save, as shares of a step without the profiler."""
    whole_ns = diagnosis.step_ns
    least, most = (min(ns / whole_ns, 1.0) for ns in prescription.saves_ns)
    return least, most


def usual_saving(
    planted: Sequence[Sequence[float]], changed: Sequence[Sequence[float]], quantile: float = 0.5
) -> Saving:
    """Return what the usual step of runs in turns shows: of what comes in every step.

    The usual step is the median one, or on a busy machine a lower quantile: other processes only make steps longer.
    The share is the middle one of all pairs of runs; its interval is a bootstrap over runs and, in each, over steps.
    """
    rng = np.random.default_rng(0)
    (share,) = _shares(_usual(planted, quantile), _usual(changed, quantile))
    shares = _shares(_resampled(planted, quantile, rng), _resampled(changed, quantile, rng))
    low, high = quantiles(shares, (1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
    return Saving(float(share), float(min(low, share)), float(max(high, share)))


def mean_saving(planted: Sequence[Sequence[float]], changed: Sequence[Sequence[float]]) -> Saving:
    """Return what the mean step over whole periods shows: of what comes in some steps only."""
    found = speed_up(planted, changed, noise=0.0)
    return Saving(1 - 1 / found.ratio, 1 - 1 / found.low, 1 - 1 / found.high)


def _usual(runs: Sequence[Sequence[float]], quantile: float) -> Floats:
    return np.array([[float(np.quantile(run, quantile)) for run in runs]])


def _resampled(runs: Sequence[Sequence[float]], quantile: float, rng: np.random.Generator) -> Floats:
    """Return `RESAMPLES` rows of usual steps of runs drawn with repetition, as the steps in each were."""
    each = [np.asarray(run, np.float64) for run in runs]
    drawn = np.stack(
        [np.quantile(run[rng.integers(0, len(run), (RESAMPLES, len(run)))], quantile, axis=1) for run in each]
    )
    shape = (RESAMPLES, len(each))
    found: Floats = drawn[rng.integers(0, len(each), shape), rng.integers(0, RESAMPLES, shape)]
    return found


def _shares(planted: Floats, changed: Floats) -> Floats:
    """Return, row by row, the middle share by which runs of the one are shorter than those of the other."""
    shares = 1 - changed[:, np.newaxis, :] / planted[:, :, np.newaxis]
    middle: Floats = np.median(shares.reshape(len(shares), -1), axis=1)
    return middle


def holds(rows: Sequence[RangeRow]) -> bool:
    """Return whether the bar is held: nine in ten of what was decided within the range, and no wrong sign."""
    outcomes = [row.outcome for row in rows]
    decided = len(outcomes) - sum(map(outcomes.count, OPEN))
    return "wrong sign" not in outcomes and outcomes.count("within") >= WITHIN_BAR * decided


def summary(rows: Sequence[RangeRow]) -> str:
    """Return how many measured savings lie within their ranges, and how wide these are."""
    outcomes = [row.outcome for row in rows]
    counts = {name: outcomes.count(name) for name in ("within", "above", "below", "wrong sign", *OPEN)}
    decided = len(rows) - sum(counts[name] for name in OPEN)
    share = f"{counts['within'] / decided:.0%}" if decided else "none"
    width = f"{median(row.width for row in rows):.0%}" if rows else "none"
    return (
        f"Measured savings within the stated range: {counts['within']} of {decided} ({share}; bar {WITHIN_BAR:.0%}); "
        f"above {counts['above']}, below {counts['below']}, of the wrong sign {counts['wrong sign']} (bar 0), "
        f"undecided {counts['undecided']}, recorded without a core "
        f"{counts['no core']}. A range is {width} of the step wide in the median."
    )


def table(rows: Sequence[RangeRow]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| script | change | made by | step, ms | stated | measured (95%) | the measured saving is |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        stated, found = "{:.0%} to {:.0%}".format(*row.stated), row.measured
        measured = f"{found.share:.0%} ({found.low:.0%} to {found.high:.0%})"
        lines.append(
            f"| {row.name} | {row.change} | {row.made} | {row.step_ms:.2f} | {stated} | {measured} | {row.outcome} |"
        )
    return "\n".join(lines)
