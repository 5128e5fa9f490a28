"""When the optimizer updates parameters: its step without what a closure computes in it.

Some trainers hand forward and backward to ``optimizer.step`` as a closure. What comes after the last gradient is the
optimizer's own, and where it calls the closure several times, as LBFGS does, what comes between a gradient and the
``zero_grad`` of the next call.
"""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Ints
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, intersect, union
from diagnose.tables import Tables
from diagnose.tables.names import BACKWARD, OPTIMIZER_STEP, ZERO_GRAD, matching

__all__ = ["updates"]


def updates(t: Tables) -> Intervals:
    """Return the times in which a step of an optimizer updates parameters."""
    steps = t.covering(t.calls(OPTIMIZER_STEP, Kind.ANNOTATION, Kind.OP))
    if not len(steps.start):
        return steps
    gradients = np.sort(t.trace.events.end[matching(t.trace, (Kind.OP, Kind.ANNOTATION), BACKWARD)], kind="stable")
    if not len(gradients):
        return steps
    last = gradients[np.maximum(np.searchsorted(gradients, steps.end, side="right") - 1, 0)]
    inside = (last > steps.start) & (last < steps.end)
    after = Intervals(np.where(inside, last, steps.start), steps.end)
    return union(after, _between_calls(t, steps, gradients))


def _between_calls(t: Tables, steps: Intervals, gradients: Ints) -> Intervals:
    """Return what lies, within a step, between the last gradient of a closure's call and the next ``zero_grad``."""
    cleared = np.sort(t.trace.events.start[t.calls(ZERO_GRAD, Kind.ANNOTATION, Kind.OP)], kind="stable")
    step = np.searchsorted(steps.start, cleared, side="right") - 1
    before = np.searchsorted(gradients, cleared, side="right") - 1
    cleared, step, before = (part[(step >= 0) & (before >= 0)] for part in (cleared, step, before))
    within = gradients[before] > steps.start[step]
    return intersect(union((gradients[before][within], cleared[within])), steps)
