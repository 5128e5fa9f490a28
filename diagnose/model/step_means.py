"""What a step of a run costs on average, where some steps recur that take longer: logging, validation, a checkpoint.

A median has no part of a cost that falls on every tenth step. A mean has, if it is taken over whole periods: over 25
steps it has two or three of those costs. Single long steps that recur at no distance are the machine's and are cut down
to the next longest, so that a few stalls do not decide about a run. Those that are at the same place of all equal runs
are the program's, such as collections of garbage, which come as objects grow in number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diagnose.model.arrays import Floats, Rows

__all__ = ["mean_step", "period_of", "whole_periods"]

MIN_STEPS = 4  # two periods of two
MIN_EXPLAINED = 0.5  # of the variance, by the same steps of the other periods; noise explains none
MIN_BEST_SHARE = 0.9  # multiples of a period explain as much: the shortest that comes near is taken
ALIKE = 0.5  # of a long step's excess: one with as much is of its kind
STEPS_PER_STALL = 50  # of a run: as many long steps that no other resembles are cut down, one at least
STALLED_SHARE = 0.05  # of a run without a period: so many of its longest steps are cut down
MAX_SHIFT = 1  # of a place between runs: objects are counted from where warming up ended, a step sooner or later
MIN_LONG_RATIO = (
    3  # times the median step: what a run of the program does now and then, and no slower spell of the machine
)


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
    if num < MIN_STEPS or not 0 < x.max() < np.inf:
        return 1
    x = x / x.max()
    alone = _error(x, np.zeros(num, np.intp))
    if alone <= 0:
        return 1
    explained = np.array([1 - _error(x, np.arange(num) % period) / alone for period in range(2, num // 2 + 1)])
    least = max(MIN_EXPLAINED, MIN_BEST_SHARE * explained.max(initial=0.0))
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
        at = -1 - int(STALLED_SHARE * len(steps))
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
    if len(steps) < MIN_STEPS:
        return steps
    steps = steps.copy()
    for _ in range(max(1, len(steps) // STEPS_PER_STALL)):
        middle, longest = float(np.median(steps)), int(np.argmax(steps))
        if np.sum(steps - middle >= ALIKE * (steps[longest] - middle)) > 1:
            return steps
        steps[longest] = np.partition(steps, -2)[-2]
    return steps
