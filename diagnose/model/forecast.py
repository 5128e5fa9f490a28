"""What a replay shows: the critical path of the steps, and what they would take after changes. Times in ns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["MAX_RANGE", "CriticalPath", "Forecast", "PathSegment", "Waterfall", "middle_ns"]

MAX_RANGE = 4.0  # of the highest end over the lowest one: a wider range is no promise


class PathSegment(NamedTuple):
    """A piece of the critical path of one step: what the step's end waited for; times are ns from the step's start."""

    start_ns: int
    end_ns: int
    category: str  # compute, communication, copy, host, latency
    name: str
    lane: str


class CriticalPath(NamedTuple):
    """What the step consists of when every wait is followed to its reason."""

    shares: Mapping[str, float]  # of the path by category, over the replayed steps; sums to 1
    pieces: tuple[PathSegment, ...] = ()  # of the pictured step, in time order, small ones joined


class Forecast(NamedTuple):
    """The step after some prescriptions, replayed together."""

    ids: tuple[str, ...]  # of the prescriptions applied, in order; () for the step as it is
    title: str  # of the one applied last, or "now"
    step_ns: float
    low_ns: float
    high_ns: float

    @property
    def is_narrow(self) -> bool:
        """Return whether the step can be stated, and not only between what it lies."""
        return self.high_ns <= MAX_RANGE * self.low_ns


class Waterfall(NamedTuple):
    """The best combination, one prescription after the other; the first entry is the step as measured."""

    forecasts: tuple[Forecast, ...]
    bound_by: str  # what binds the step after the last one, as it stands in "is bound by …"
    shares: Mapping[str, float]  # of the critical path then, by category
    combinations: tuple[Forecast, ...] = ()  # of every subset: bit i of the index stands for change i of the chain


def middle_ns(low_ns: float, high_ns: float) -> float:
    """Return the prediction of a range, which is its middle: a card, a bar and a trial name the same number."""
    return (low_ns + high_ns) / 2
