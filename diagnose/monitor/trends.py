"""What the rows of a long run show and a dozen steady steps cannot: steps that become slower, creep, tails, growth.

A row is compared with the run's own first rows, never with a threshold in milliseconds. The first row is left out: it
holds compiling, autotuning and cold caches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from diagnose.model.limits import FEWEST
from diagnose.monitor.step_rows import Row, percentile
from diagnose.text.numbers import duration, growth, percent

MAX_REFERENCE = 10  # rows: long enough for their spread, and early enough to show a creep
CONFIRMED = 2  # rows in a row that must be slower: one may hold an evaluation or a neighbour's burst
MIN_TREND_ROWS = 8
MIN_TREND_Z = 3.0  # of the Mann-Kendall test: one in a thousand without a trend
MIN_PHASE = 0.05  # of the run's time, from which evaluation, checkpoints and epochs are worth a line


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Steps that became slower than the run's own history."""

    step: int  # the first of the slower ones
    before_ns: float
    after_ns: float

    @property
    def ratio(self) -> float:
        """Return how many times as long a step takes."""
        return self.after_ns / self.before_ns

    def __str__(self) -> str:
        """Return it in one clause."""
        more = growth(self.ratio - 1)
        times = f"{duration(self.before_ns)} until step {self.step - 1}, then {duration(self.after_ns)}"
        return f"steps take {more} more than before: {times}"


class SlowdownDetector:
    """Takes one row after another; ``add`` returns a slowdown at the row that confirms it.

    Afterwards the slower level is the reference, so that each slowdown is reported once; so is a faster one that lasts.
    """

    def __init__(self, min_share: float) -> None:
        self._min_share = min_share
        self._rows: list[Row] = []  # since the reference began
        self._skipped_first = False
        self._level = (0.0, 0.0)  # of the reference, once that has all its rows
        self._level_known = False

    def add(self, row: Row) -> Slowdown | None:
        """Take a row."""
        if not self._skipped_first:
            self._skipped_first = True
            return None
        self._rows.append(row)
        size = min(MAX_REFERENCE, len(self._rows) - CONFIRMED)
        if size < FEWEST:
            return None
        newest = self._rows[-CONFIRMED:]
        if not self._level_known:
            self._level = _level(self._rows[:size], self._min_share)
            self._level_known = size == MAX_REFERENCE
        level, limit = self._level
        if all(each.p50_ns > limit for each in newest):
            found = Slowdown(newest[0].step - newest[0].covered + 1, level, median(each.p50_ns for each in newest))
            self._rows, self._level_known = newest, False
            return found
        if all(each.p50_ns < level - (limit - level) for each in self._rows[-FEWEST:]):
            self._rows, self._level_known = self._rows[-FEWEST:], False
        else:
            del self._rows[MAX_REFERENCE:-FEWEST]
        return None


def _level(rows: Sequence[Row], min_share: float) -> tuple[float, float]:
    """Return the median step of these rows, and the step from which a row is slower."""
    level = median(row.p50_ns for row in rows)
    # A standard deviation is 1.48 median absolute deviations.
    spread = 1.4826 * median(abs(row.p50_ns - level) for row in rows)
    # A run that alternates between two levels has no deviation, but reaches both.
    reached = percentile(sorted(row.p50_ns for row in rows), 90) - level
    # What equal rows differ by is no slowdown.
    return level, level + max(min_share * level, 4.0 * spread, reached + min_share / 2 * level)


@dataclass(frozen=True, slots=True)
class Observation:
    """One thing that a whole run shows: a kind that programs can rely on, and a sentence."""

    kind: str  # slower, creep, tail, memory, device-memory, loading, evaluation, checkpoint, epoch
    text: str
    share: float  # of the run's time, or by how much the quantity grew

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {"kind": self.kind, "text": self.text, "share": round(self.share, 4)}


class GrowthDetector:
    """Looks at the memory of a run after 8 rows, 16, 32 and so on: all pairs of rows are compared."""

    def __init__(self) -> None:
        self._due = MIN_TREND_ROWS + 1  # the first row is left out

    def look(self, rows: Sequence[Row]) -> str:
        """Return by how much memory has grown in all rows so far; "" if it has not, and between two looks."""
        if len(rows) < self._due:
            return ""
        self._due = 2 * len(rows) - 1
        return " ".join(found.text for found in _growth(rows[1:]))


def observe(rows: Sequence[Row], min_share: float) -> list[Observation]:
    """Return what the rows of a run show; nothing where they are too few."""
    detector = SlowdownDetector(min_share)
    slowdowns = [found for row in rows if (found := detector.add(row)) is not None]
    observations = [Observation("slower", f"S{str(found)[1:]}.", found.ratio - 1) for found in slowdowns]
    settled = rows[1:]
    if len(settled) >= MIN_TREND_ROWS:
        first, last = settled[0].step, settled[-1].step
        values = _thinned(settled, lambda row: row.p50_ns)
        grown, z = trend(values)
        share = grown / median(values)
        if not slowdowns and z >= MIN_TREND_Z and share >= 0.03:
            text = f"Steps became slower little by little: {growth(share)} from step {first} to step {last}."
            observations.append(Observation("creep", text, share))
        part = max(2, len(settled) // 4)
        before, after = (median(row.p99_ns / row.p50_ns for row in some) for some in (settled[:part], settled[-part:]))
        # The 99th percentile over the median has to rise by half.
        if after >= 1.5 * before:
            text = (
                f"The slowest steps became slower: the 99th percentile was {before:.2g} median steps, and is "
                f"{after:.2g} now."
            )
            observations.append(Observation("tail", text, after / before - 1))
        observations += _growth(settled)
    return [*observations, *_parts(rows)]


def trend(values: Sequence[float]) -> tuple[float, float]:
    """Return by how much the values grow from first to last, and the z-score of that there is a trend at all.

    The growth is Theil and Sen's median of all slopes; the test is Mann and Kendall's.
    """
    count = len(values)
    pairs = [(values[j] - values[i], j - i) for i in range(count) for j in range(i + 1, count)]
    score = sum((step > 0) - (step < 0) for step, _ in pairs)
    sigma = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    z = (score - (score > 0) + (score < 0)) / sigma if sigma else 0.0
    return median(step / apart for step, apart in pairs) * (count - 1), z


def _growth(rows: Sequence[Row]) -> list[Observation]:
    kinds: list[tuple[str, str, Callable[[Row], float | None]]] = [
        ("memory", "Memory of this process", lambda row: row.readings.rss_mb),
        ("device-memory", "Device memory held by tensors", lambda row: row.readings.allocated_mb),
    ]
    found = []
    for kind, name, read in kinds:
        values = _thinned(rows, read)
        if len(values) < MIN_TREND_ROWS:
            continue
        grown, z = trend(values)
        share = grown / max(values[0], 1.0)
        # Below, caches are still filling.
        if z >= MIN_TREND_Z and share >= 0.05 and grown >= 50.0:
            per_1000 = grown / max(rows[-1].step - rows[0].step, 1) * 1000
            text = f"{name} grows: {values[0]:,.0f} MB to {values[-1]:,.0f} MB, {per_1000:,.3g} MB per 1,000 steps."
            found.append(Observation(kind, text, share))
    return found


def _thinned(rows: Sequence[Row], read: Callable[[Row], float | None]) -> list[float]:
    """Return the known values of at most so many rows, evenly taken."""
    # All pairs of values are looked at.
    every = -(-len(rows) // 200)
    return [value for row in rows[::every] if (value := read(row)) is not None]


def _parts(rows: Sequence[Row]) -> list[Observation]:
    """Return the parts of the run's time beside training that are worth a line."""
    total = sum(row.total_ns for row in rows)
    if not total:
        return []
    names = {"loading": "waiting for batches", "evaluation": "evaluation", "checkpoint": "writing checkpoints"}
    found = []
    for phase, name in names.items():
        share = sum(row.phase_ns(phase) for row in rows) / total
        if share >= MIN_PHASE:
            found.append(Observation(phase, f"{percent(share)} of the run is {name}.", share))
    epochs = sum(row.epochs * row.weight for row in rows)
    cost = sum(row.epoch_ns * row.weight for row in rows)
    if epochs and cost / total >= MIN_PHASE:
        text = f"The start of an epoch costs {duration(cost / epochs)} each time, {percent(cost / total)} of the run."
        found.append(Observation("epoch", text, cost / total))
    return found
