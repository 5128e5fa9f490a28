"""How much faster, and how sure: ratios of medians with bootstrap intervals, widened by the machine's own noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["SpeedUp", "noise_of", "speed_up"]

Floats: TypeAlias = npt.NDArray[np.float64]

RESAMPLES = 2000
COVERAGE = 0.95


class SpeedUp(NamedTuple):
    """Baseline over variant: 2 is twice as fast."""

    ratio: float
    low: float
    high: float


def speed_up(baseline: Sequence[Sequence[float]], variant: Sequence[Sequence[float]], noise: float) -> SpeedUp:
    """Compare the runs of two variants, each a sequence of step times.

    The ratio is that of the medians over all steps. Its interval is a bootstrap over runs and, within each, over
    steps; both ends are then moved outwards by the share by which equal runs were seen to differ, since two or three
    runs say little about the spread between runs.
    """
    rng = np.random.default_rng(0)
    ratios = [_median(_resampled(baseline, rng)) / _median(_resampled(variant, rng)) for _ in range(RESAMPLES)]
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    ratio = _median(np.concatenate([np.asarray(run) for run in baseline])) / _median(
        np.concatenate([np.asarray(run) for run in variant])
    )
    return SpeedUp(float(ratio), float(min(low, ratio) / (1 + noise)), float(max(high, ratio) * (1 + noise)))


def noise_of(runs: Sequence[Sequence[float]]) -> float:
    """Return the share by which the median step of equal runs differs: the largest against their middle, 0 for one."""
    medians = np.array([np.median(run) for run in runs if len(run)])
    if len(medians) < 2:  # one run has nothing to differ from
        return 0.0
    return float(np.max(np.abs(medians / np.median(medians) - 1)))


def _resampled(runs: Sequence[Sequence[float]], rng: np.random.Generator) -> Floats:
    chosen = rng.integers(0, len(runs), len(runs))
    parts = [np.asarray(runs[i]) for i in chosen]
    return np.concatenate([part[rng.integers(0, len(part), len(part))] for part in parts])


def _median(values: Floats) -> float:
    return float(np.median(values))
