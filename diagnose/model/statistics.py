"""How two sets of runs differ, and how certain that is; a run is one process, and its steps are no runs.

A run counts by its mean step over whole periods (`diagnose.model.statistics`): what falls on every tenth step is a part
of the mean, as in what a recording predicts, and none of the median. A shared machine has fast and slow spells that
outlast a run, so that equal runs are bimodal; the middle of all their steps then jumps from one mode to the other.

`speed_up` is for runs in turns, as ``prove`` makes them: every run of one variant is set against every run of the
other, and the middle ratio is taken (the estimator of Hodges and Lehmann for a shift, on logarithms). Pairs of equal
spells agree, and those of unequal ones lie on both sides of them. `run_shift` is for runs of which one set was recorded
earlier, as for ``gate`` and ``compare``: all runs of one side may have met the same spell.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, comb, exp, hypot, inf, log
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from diagnose.model.arrays import Floats, Rows
from diagnose.model.intervals import quantiles
from diagnose.model.limits import FEW, MAJORITY

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Trial

# What a step of a run costs on average, where some steps recur that take longer: logging, validation, a checkpoint.
#
# A median has no part of a cost that falls on every tenth step. A mean has, if it is taken over whole periods: over 25
# steps it has two or three of those costs. Single long steps that recur at no distance are the machine's and are cut
# down to the next longest, so that a few stalls do not decide about a run. Those that are at the same place of all
# equal runs are the program's, such as collections of garbage, which come as objects grow in number.

MIN_PERIOD_STEPS = 4  # two periods of two
MIN_BEST_SHARE = 0.9  # multiples of a period explain as much: the shortest that comes near is taken
MAX_SHIFT = 1  # of a place between runs: objects are counted from where warming up ended, a step sooner or later
MIN_LONG_RATIO = 3.0  # times the median step: what a run does now and then, and no slower spell of the machine


def mean_step(steps: Sequence[float]) -> float:
    """Return the mean step of one run over whole periods."""
    return float(whole_periods([steps])[0].mean())


def period_of(steps: Sequence[float]) -> int:
    """Return after how many steps long ones recur, 1 where none do.

    A period is taken where each step is predicted by those at its place in the other periods (left out itself) far
    better than by the mean of all others. It has to be there twice.
    """
    x = _without_stalls(np.asarray(steps, np.float64))
    num = len(x)
    if num < MIN_PERIOD_STEPS or not 0 < x.max() < np.inf:
        return 1
    x = x / x.max()
    alone = _error(x, np.zeros(num, np.intp))
    if alone <= 0:
        return 1
    explained = np.array([1 - _error(x, np.arange(num) % period) / alone for period in range(2, num // 2 + 1)])
    # Of the variance: noise explains none.
    least = max(MAJORITY, MIN_BEST_SHARE * explained.max(initial=0.0))
    found = np.flatnonzero(explained >= least)
    return int(found[0]) + 2 if len(found) else 1


def whole_periods(runs: Sequence[Sequence[float]]) -> list[Floats]:
    """Return the steps of equal runs, one row a period; the first ones are dropped where they fill none.

    The period is the one that most of the runs have, of several the shortest.
    """
    periods = [period_of(run) for run in runs]
    period = int(np.bincount(periods).argmax()) if periods else 1
    each = [np.asarray(run, np.float64) for run in runs]
    if period > 1:
        return [_rows(_without_stalls(run), period) for run in each]
    return [_rows(_without_stalls(run), period) + shared for run, shared in map(_apart, each, _long_in_all(each))]


def _long_in_all(runs: Sequence[Floats]) -> list[Rows]:
    """Return, for each run, its long steps that are long in all runs, the first left out: it may be cold in all."""
    if len(runs) < 2 or not all(len(run) for run in runs):
        return [np.empty(0, np.intp)] * len(runs)
    num = min(map(len, runs))
    is_long = [run[:num] >= MIN_LONG_RATIO * np.median(run) for run in runs]
    shifted = np.logical_and.reduce([np.convolve(each, np.ones(2 * MAX_SHIFT + 1), "same") > 0 for each in is_long])
    return [found[found > 0] for found in (np.flatnonzero(each & shifted) for each in is_long)]


def _apart(steps: Floats, long: Rows) -> tuple[Floats, float]:
    """Return the steps with the long ones as long as the median, and what these add to the mean step."""
    if not len(long):
        return steps, 0.0
    middle, steps = float(np.median(steps)), steps.copy()
    shared = float((steps[long] - middle).sum()) / len(steps)
    steps[long] = middle
    return steps, shared


def _rows(steps: Floats, period: int) -> Floats:
    if period == 1 or 2 * period > len(steps):
        at = -1 - int(FEW * len(steps))  # so many of the longest are cut down
        each: Floats = np.minimum(steps, np.partition(steps, at)[at]).reshape(-1, 1)
        return each
    return steps[len(steps) % period :].reshape(-1, period)


def _error(x: Floats, place: Rows) -> float:
    """Return the mean squared distance of each step from the others at its place."""
    counts, sums = np.bincount(place), np.bincount(place, x)
    others = (sums[place] - x) / (counts[place] - 1)
    return float(np.mean((x - others) ** 2))


def _without_stalls(steps: Floats) -> Floats:
    """Cut long steps that no other resembles down to the next longest one."""
    if len(steps) < MIN_PERIOD_STEPS:
        return steps
    steps = steps.copy()
    # Of a run: as many long steps that no other resembles are cut down, one at least.
    for _ in range(max(1, len(steps) // 50)):
        middle, longest = float(np.median(steps)), int(np.argmax(steps))
        if np.sum(steps - middle >= MAJORITY * (steps[longest] - middle)) > 1:
            return steps
        steps[longest] = np.partition(steps, -2)[-2]
    return steps


RESAMPLES = 2000
# Student's t, two-sided 95 %, for 1, 2, … degrees of freedom; beyond the table its expansion around the normal quantile
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
NORMAL_QUANTILE = 1.960
REGULAR_COUNT_SD = 0.5  # a window holds as many of equal distances as its length over theirs, rounded up or down
MAX_EVEN = 0.03  # of a step, which is no difference worth having: runs of one script differ by as much
MIN_LEANING = 0.5  # of half the interval, from 1 to its middle: a standard deviation, odds of five to one
MAX_LOG_RATIO = 100.0  # keeps damaged times finite; no two steps differ by that


class SpeedUp(NamedTuple):
    """Baseline over variant: 2 is twice as fast."""

    ratio: float
    low: float
    high: float


class RunShift(NamedTuple):
    """The step of one set of runs over that of another: 1.2 is 20 % longer."""

    ratio: float  # of the medians over the runs
    low: float  # 95 %, from the spread between the runs of each side
    high: float
    spread: float  # standard deviation of equal runs, as a share
    gap: float  # the fastest of the slower runs over the slowest of the faster ones; below 1 where the sides overlap
    order_chance: float  # that equal runs come in an order that separates the sides as much, in this direction
    num_orders: int  # in which the runs of both sides can come


def run_shift(baseline: Sequence[float], candidate: Sequence[float]) -> RunShift:
    """Compare the steps of independent runs, one number each, at least two on one side and one on the other.

    The interval is Student's for the difference of mean logarithms, and holds the ratio of the medians too: with two to
    five runs a side a bootstrap over runs is too narrow. On a machine with fast and slow spells the runs follow no bell
    curve, so the chance of their order is given too: the exact test of Mann and Whitney, for any distribution.
    """
    before, after = np.log(np.asarray(baseline)), np.log(np.asarray(candidate))
    freedom = len(before) + len(after) - 2
    squares = float(np.sum((before - before.mean()) ** 2) + np.sum((after - after.mean()) ** 2))
    spread = (squares / freedom) ** 0.5
    reach = min(_t_quantile(freedom) * spread * (1 / len(before) + 1 / len(after)) ** 0.5, MAX_LOG_RATIO)
    middle = float(after.mean() - before.mean())
    ratio = float(np.median(candidate) / np.median(baseline))
    slower, faster = (candidate, baseline) if ratio >= 1 else (baseline, candidate)
    # The share of all orders of the runs that have as few pairs in the wrong order; a tie is a wrong one.
    wrong = sum(a <= b for a in slower for b in faster)
    orders = [1] + [0] * wrong  # by their number of wrong pairs: the coefficients of a Gaussian binomial
    for i in range(1, len(slower) + 1):
        for pairs in range(wrong, len(faster) + i - 1, -1):
            orders[pairs] -= orders[pairs - len(faster) - i]
        for pairs in range(i, wrong + 1):
            orders[pairs] += orders[pairs - i]
    order_chance = sum(orders) / comb(len(slower) + len(faster), len(slower))
    return RunShift(
        ratio=ratio,
        low=min(ratio, exp(middle - reach)),
        high=max(ratio, exp(middle + reach)),
        spread=spread,
        gap=min(slower) / max(faster),
        order_chance=order_chance,
        num_orders=comb(len(before) + len(after), len(before)),
    )


def runs_needed(spread: float, ratio: float) -> float:
    """Return how many runs a side tell two steps apart of which one is ``ratio`` times as long, infinite for 1."""
    return inf if ratio <= 1 else ceil(2 * (T_QUANTILES[-1] * spread / log(ratio)) ** 2)


def speed_up(baseline: Sequence[Sequence[float]], variant: Sequence[Sequence[float]], noise: float) -> SpeedUp:
    """Compare the runs of two variants, each a sequence of step times.

    The ratio is the middle one of all pairs of a run of each, by their mean steps. Its interval is a bootstrap over
    runs and, within each, over periods; both ends are then moved outwards by the share by which equal runs were seen to
    differ, since two or three runs say little about the spread between runs: by less, the more runs there are.
    """
    rng = np.random.default_rng(0)
    before, after = whole_periods(baseline), whole_periods(variant)
    ratios = _middle_ratios(_resampled(before, rng), _resampled(after, rng))
    (ratio,) = _middle_ratios(_means(before), _means(after))
    low, high = quantiles(ratios, 0.025, 0.975)
    # Of two runs of each the noise counts whole.
    noise *= (2 / min(len(baseline), len(variant))) ** 0.5
    return SpeedUp(float(ratio), float(min(low, ratio) / (1 + noise)), float(max(high, ratio) * (1 + noise)))


def is_even(interval: tuple[float, float]) -> bool:
    """Return whether a whole interval, to two digits, lies so close to 1 that there is no difference worth having."""
    low, high = (round(end, 2) for end in interval)
    return 1 - MAX_EVEN <= low <= high <= 1 + MAX_EVEN


def shows_no_difference(trial: Trial) -> bool:
    """Return whether the runs show that the change makes no difference worth having."""
    return is_even(trial.interval) and trial.doubt != "noise not known"


def leaning(ratio: float, interval: tuple[float, float]) -> Literal["faster", "slower", ""]:
    """Return to which side of 1 a speed-up probably lies, "" where its interval leaves that open or is even."""
    low, high = interval
    if (
        is_even(interval)
        or not 0 < low <= high < inf
        or not 0 < ratio < inf
        or abs(log(ratio)) <= MIN_LEANING * log(high / low) / 2
    ):
        return ""
    return "faster" if ratio > 1 else "slower"


def middle_step(runs: Sequence[Sequence[float]]) -> float:
    """Return the step of several equal runs: the median of their means."""
    return float(np.median(_means(whole_periods(runs))))


def noise_of(runs: Sequence[Sequence[float]]) -> float:
    """Return the share by which the mean step of equal runs differs: the largest against their middle, 0 for one."""
    means = _means(whole_periods([run for run in runs if len(run)]))[0]
    if len(means) < 2:  # one run has nothing to differ from
        return 0.0
    return float(np.max(np.abs(means / np.median(means) - 1)))


def sum_factor(lengths: Sequence[float], *, is_regular: bool) -> float:
    """Return by what factor the sum of occurrences in a window of time may differ from the expected one, 95 %.

    The delta method on the logarithm: the mean of n lengths has the standard error sd/√n, with Student's quantile; the
    number of occurrences has √n, as Poisson's, or `REGULAR_COUNT_SD` where they come at a regular distance.
    """
    each = np.asarray(lengths, np.float64)
    num, mean = len(each), float(each.mean()) if len(each) else 0.0
    if mean <= 0:
        return 1.0
    of_number = NORMAL_QUANTILE * (REGULAR_COUNT_SD if is_regular else num**0.5) / num
    return exp(min(hypot(of_number, mean_error(lengths)), MAX_LOG_RATIO))


def mean_error(values: Sequence[float]) -> float:
    """Return the share by which the mean of some values may differ from that of all, 95 %: Student's; 0 for one."""
    each = np.asarray(values, np.float64)
    mean = float(each.mean()) if len(each) else 0.0
    if len(each) < 2 or mean <= 0:
        return 0.0
    return _t_quantile(len(each) - 1) * float(each.std(ddof=1)) / mean / float(len(each) ** 0.5)


def _t_quantile(freedom: int) -> float:
    if freedom <= len(T_QUANTILES):
        return T_QUANTILES[freedom - 1]
    z = NORMAL_QUANTILE
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _means(runs: Sequence[Floats]) -> Floats:
    """Return the mean step of each run, in one row."""
    return np.array([[float(run.mean()) for run in runs]])


def _resampled(runs: Sequence[Floats], rng: np.random.Generator) -> Floats:
    """Return `RESAMPLES` rows of the means of runs that were drawn with repetition, as the periods in each were."""
    means = np.stack([run.mean(axis=1)[rng.integers(0, len(run), (RESAMPLES, len(run)))].mean(axis=1) for run in runs])
    shape = (RESAMPLES, len(runs))
    found: Floats = means[rng.integers(0, len(runs), shape), rng.integers(0, RESAMPLES, shape)]
    return found


def _middle_ratios(baseline: Floats, variant: Floats) -> Floats:
    """Return, row by row, the median of every run's step in ``baseline`` over every run's in ``variant``."""
    ratios = baseline[:, :, np.newaxis] / variant[:, np.newaxis, :]
    middle: Floats = np.median(ratios.reshape(len(ratios), -1), axis=1)
    return middle


MIN_PART_STEPS = 8  # their median shrugs off a long one
MIN_RUN_GROWTH = 0.1  # from the first part to the last: what equal steps differ by on a quiet machine


def grows(times: Sequence[float]) -> bool:
    """Return whether each part of the steps takes longer than the one before, the last by a tenth than the first."""
    num = len(times) // 4  # parts of the run, one after the other, each compared with the one before
    if num < MIN_PART_STEPS:
        return False
    level = [median(times[i * num : (i + 1) * num]) for i in range(4)]
    return all(a < b for a, b in pairwise(level)) and level[-1] >= (1 + MIN_RUN_GROWTH) * level[0]
