"""How much faster, and how sure: ratios of runs' medians with bootstrap intervals, widened by the machine's own noise.

A shared machine has fast and slow spells that outlast a run, so that equal runs fall into two heaps. The median of all
their steps then jumps from one heap to the other. Instead every run of one variant is set against every run of the
other, and the middle ratio is taken (the estimator of Hodges and Lehmann for a shift, on logarithms): pairs of equal
spells agree, and those of unequal ones lie on both sides of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["SpeedUp", "noise_of", "speed_up"]

Floats: TypeAlias = npt.NDArray[np.float64]

USUAL_RUNS = 2  # of each variant: the noise counts whole
RESAMPLES = 2000
COVERAGE = 0.95


class SpeedUp(NamedTuple):
    """Baseline over variant: 2 is twice as fast."""

    ratio: float
    low: float
    high: float


def speed_up(baseline: Sequence[Sequence[float]], variant: Sequence[Sequence[float]], noise: float) -> SpeedUp:
    """Compare the runs of two variants, each a sequence of step times.

    The ratio is the middle one of all pairs of a run of each, by their median steps. Its interval is a bootstrap over
    runs and, within each, over steps; both ends are then moved outwards by the share by which equal runs were seen to
    differ, since two or three runs say little about the spread between runs: by less, the more runs there are.
    """
    rng = np.random.default_rng(0)
    ratios = _middle_ratios(_resampled(baseline, rng), _resampled(variant, rng))
    (ratio,) = _middle_ratios(_medians(baseline), _medians(variant))
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    noise *= (USUAL_RUNS / min(len(baseline), len(variant))) ** 0.5
    return SpeedUp(float(ratio), float(min(low, ratio) / (1 + noise)), float(max(high, ratio) * (1 + noise)))


def noise_of(runs: Sequence[Sequence[float]]) -> float:
    """Return the share by which the median step of equal runs differs: the largest against their middle, 0 for one."""
    medians = np.array([np.median(run) for run in runs if len(run)])
    if len(medians) < 2:  # one run has nothing to differ from
        return 0.0
    return float(np.max(np.abs(medians / np.median(medians) - 1)))


def _medians(runs: Sequence[Sequence[float]]) -> Floats:
    """Return the median step of each run, in one row."""
    return np.array([[np.median(run) for run in runs]])


def _resampled(runs: Sequence[Sequence[float]], rng: np.random.Generator) -> Floats:
    """Return `RESAMPLES` rows of the medians of runs that were drawn with repetition, as the steps in each were."""
    steps = [np.asarray(run) for run in runs]
    medians = np.stack([np.median(run[rng.integers(0, len(run), (RESAMPLES, len(run)))], axis=1) for run in steps])
    shape = (RESAMPLES, len(runs))
    found: Floats = medians[rng.integers(0, len(runs), shape), rng.integers(0, RESAMPLES, shape)]
    return found


def _middle_ratios(baseline: Floats, variant: Floats) -> Floats:
    """Return, row by row, the median of every run's step in ``baseline`` over every run's in ``variant``."""
    ratios = baseline[:, :, np.newaxis] / variant[:, np.newaxis, :]
    middle: Floats = np.median(ratios.reshape(len(ratios), -1), axis=1)
    return middle
