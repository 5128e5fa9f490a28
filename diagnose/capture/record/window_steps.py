"""How many steps a recorded window has, and how many show that steps are steady."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from diagnose.capture.steps.converged import MIN_WINDOW_STEPS

__all__ = ["MIN_STEPS", "Economy", "attribution_steps", "economy", "fitting_steps", "steady_steps"]

MIN_STEPS = 10  # of a window without --steps: the median of ten is steady to a few percent
LONG_WINDOW_NS = 5_000_000_000  # so long a window needs no ten steps: long ones vary less
MIN_LONG_STEPS = 2
LONG_STEP_NS = 1_000_000_000  # of such steps one and one show that they are steady: they vary little
VERY_LONG_STEP_NS = 3_000_000_000  # what the profiler's own first step costs, some 0.1 s, is within a few percent
MAX_STEPS = 100  # and of short steps so many that the window lasts
WINDOW_NS = 500_000_000  # half a second: a hundred samples of the executing line
# Of JSON text, or MIN_ATTRIBUTION_STEPS where these take more: 21 MB name the same lines as 87 MB, and the command took
# 12.5 s of CPU time instead of 23.4 (a loader that indexes 1,024 rows in each step).
ATTRIBUTION_MB = 30.0
MIN_ATTRIBUTION_STEPS = 3


def fitting_steps(times: Sequence[int], device_ns: float | None) -> int:
    """Return how many steps make a window long enough for the sampler and for a steady median.

    ``times`` are the host's (ns), which may only queue what the device takes ``device_ns`` for.
    """
    if not times:
        return MIN_STEPS
    step_ns = max(median(times[-MIN_STEPS:]), device_ns or 0.0)
    least = min(max(math.ceil(LONG_WINDOW_NS / step_ns), MIN_LONG_STEPS), MIN_STEPS)
    return min(max(math.ceil(WINDOW_NS / step_ns), least), MAX_STEPS)


def attribution_steps(step_mb: float, left_mb: float) -> int:
    """Return how many steps of ``step_mb`` of JSON text the attribution window may have, where ``left_mb`` are left."""
    return int(min(left_mb, max(ATTRIBUTION_MB, MIN_ATTRIBUTION_STEPS * step_mb)) / step_mb)


def steady_steps(times: Sequence[int]) -> int:
    """Return how many steps make the smallest group that is compared with the one before."""
    return 1 if times and median(times[-2:]) >= LONG_STEP_NS else MIN_WINDOW_STEPS


class Economy(NamedTuple):
    """What is left out where steps are so long that each costs more than what it would show."""

    rests: bool  # no step is spent on the cost of stopping a profiler, of some 0.1 s
    attribution: bool  # one step with stacks, without one before it: its times count for nothing
    first: bool  # nor is the timing window's first step left without a mark


def economy(times: Sequence[int]) -> Economy:
    """Return what to leave out, judging by the steps seen so far, ns."""
    step_ns = median(times[-MIN_STEPS:]) if times else 0
    is_long = step_ns >= LONG_STEP_NS
    return Economy(is_long, is_long, step_ns >= VERY_LONG_STEP_NS)
