"""Times of the attribution window as the timing window has them.

Recording stacks makes a step longer, and Python far more than operators: a function of a thousand calls would seem to
take most of it. Where a step of the timing window has called the same operators, their begins and ends stand for each
other, and times between them are brought over in proportion.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Floats, Ints, Mask, Rows
from diagnose.model.intervals import Intervals, contains
from diagnose.tables import Tables
from diagnose.tables.op_launches import MatchedStep

__all__ = ["StepClock", "own_clock", "step_clock"]


class StepClock(NamedTuple):
    """Brings times of the window with names to the time line of the steps counted, which follow each other."""

    steps: Intervals  # that count; others last no time
    time: Ints  # begins and ends of steps and operators, ns
    shown: Floats  # where they lie, ns
    as_timed: bool  # in the timing window

    @property
    def num(self) -> int:
        """Return the number of steps that count."""
        return len(self.steps.start)

    @property
    def step_ns(self) -> float:
        """Return what a step takes."""
        return float(self.shown[-1]) / self.num

    def length(self, start: Ints, end: Ints) -> Floats:
        """Return how long each takes, of what lies within the steps."""
        found: Floats = np.interp(end, self.time, self.shown) - np.interp(start, self.time, self.shown)
        return found

    def counts(self, time: Ints) -> Mask:
        """Return which times lie within the steps."""
        return contains(self.steps, time)


def step_clock(t: Tables) -> StepClock:
    """Return the clock of the window with names: that of its own times where no step has its like in the other one."""
    named = t.named
    if named is not t and (found := _matched(t, named)) is not None:
        return found
    return own_clock(named)._replace(as_timed=named is t)


def own_clock(t: Tables) -> StepClock:
    """Return the clock of a window that leaves its times as they are."""
    start, end = t.steps.window
    bounds = np.append(t.steps.start, end)
    bounds = np.maximum.accumulate(np.maximum(bounds, start))
    return StepClock(Intervals(bounds[:-1], bounds[1:]), bounds, (bounds - start).astype(np.float64), as_timed=True)


def _matched(t: Tables, named: Tables) -> StepClock | None:
    like: dict[int, list[MatchedStep]] = {}
    for step in t.matched_steps:
        like.setdefault(_step_of(named, step.named), []).append(step)
    numbers = sorted(i for i in like if i >= 0)
    if not numbers:
        return None
    times, shown, reached = [], [], 0.0
    for i in numbers:
        first = like[i][0].named
        times.append(_marks(named, i, first))
        same = [step.rows for step in like[i] if len(step.named) == len(first) and (step.named == first).all()]
        timed = [(_marks(t, j, rows) - t.steps.start[j]) for rows in same if (j := _step_of(t, rows)) >= 0]
        if not timed:
            return None
        shown.append(reached + np.mean(timed, axis=0))
        reached = float(shown[-1][-1])
    steps = Intervals(named.steps.start[numbers], named.steps.end[numbers])
    return StepClock(steps, np.concatenate(times), np.concatenate(shown), as_timed=True)


def _step_of(t: Tables, rows: Rows) -> int:
    """Return the step that operators lie in, -1 for none."""
    return int(np.searchsorted(t.steps.start, t.trace.events.start[rows[0]], side="right")) - 1


def _marks(t: Tables, step: int, rows: Rows) -> Ints:
    """Return the begin of a step, begin and end of each of its operators, and its end, in their order."""
    start, end = int(t.steps.start[step]), int(t.steps.end[step])
    inner = np.stack([t.trace.events.start[rows], t.trace.events.end[rows]], axis=1).reshape(-1)
    return np.maximum.accumulate(np.clip(np.concatenate([[start], inner, [end]]), start, end))
