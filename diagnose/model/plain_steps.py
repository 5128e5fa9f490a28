"""Step times without the profiler, right before and right after the recorded steps."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PlainSteps"]


class PlainSteps(NamedTuple):
    """Times in ns; medians of the steps around the timing window, and the run's mean step."""

    before_ns: (
        float | None
    )  # right before it; None for fewer than four, not known ones, or where those after it show what it is set against
    recorded_ns: float  # in it, as recorded
    after_ns: float | None  # right after it
    mean_ns: float | None  # of the run, without what recording made longer; None where the device's profiler did more
    num: int  # behind the mean
    agree: bool  # those before and after by their spread, and the recorded ones are not shorter by more than that
