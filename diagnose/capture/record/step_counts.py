"""How many steps a recording takes, by how long they are: short steps are many, long ones few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from diagnose.capture.steps.converged import MIN_WINDOW_STEPS

__all__ = ["MIN_STEPS", "compared_steps", "window_steps"]

MIN_STEPS = 10  # of a window without --steps: the median of ten is steady to a few percent
MAX_STEPS = 100  # and of short steps so many that the window lasts
WINDOW_NS = 500_000_000  # half a second: a hundred samples of the executing line
LONG_WINDOW_NS = 5_000_000_000  # so long a window needs no ten steps: long ones vary less
MIN_LONG_STEPS = 3
LONG_STEP_NS = 1_000_000_000  # of such steps two and two show that they are steady
NUM_LONG_COMPARED = 2


def window_steps(step_ns: float) -> int:
    """Return how many steps make a window long enough for the sampler and for a steady median."""
    least = min(max(math.ceil(LONG_WINDOW_NS / step_ns), MIN_LONG_STEPS), MIN_STEPS)
    return min(max(math.ceil(WINDOW_NS / step_ns), least), MAX_STEPS)


def compared_steps(times: Sequence[int]) -> int:
    """Return how many steps make the smallest group whose median is compared with the one before."""
    latest = times[-2 * NUM_LONG_COMPARED :]
    return NUM_LONG_COMPARED if latest and median(latest) >= LONG_STEP_NS else MIN_WINDOW_STEPS
