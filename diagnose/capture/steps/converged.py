"""Decides from step times when a script has reached its steady state."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

__all__ = ["MIN_WINDOW_STEPS", "converged_since"]

MIN_WINDOW_STEPS = 4  # steps: the smallest group whose median shrugs off one outlier on either side
TOLERANCE = 0.10  # medians of successive windows that differ by less count as equal: twice the step-to-step noise
#                   of a quiet machine (about 5 %), and far below what compiling or autotuning costs
NOISE_FACTOR = 1.0  # a difference within the noise of the medians themselves is not significant either


def converged_since(times: Sequence[float], smallest: int = MIN_WINDOW_STEPS) -> int | None:
    """Return the first step from which ``times`` have converged, None while they have not.

    The last two windows (a quarter of all steps each, at least ``smallest``) must have the same median. Windows grow
    with the wait, so noise averages out while a slow warm-up does not look flat.
    """
    window = max(smallest, len(times) // 4)
    if len(times) < 2 * window:
        return None
    before, after = times[-2 * window : -window], times[-window:]
    level_before, level_after = median(before), median(after)
    noise = median(abs(t - level_before) for t in before) + median(abs(t - level_after) for t in after)
    allowed = max(TOLERANCE * min(level_before, level_after), NOISE_FACTOR * noise / window**0.5)
    return len(times) - 2 * window if abs(level_after - level_before) <= allowed else None
