"""When the optimizer updates parameters: its step without what a closure computes in it.

Some trainers hand forward and backward to ``optimizer.step`` as a closure. What comes after the last gradient is the
optimizer's own.
"""

from __future__ import annotations

import numpy as np

from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals
from diagnose.tables import Tables, shared_table
from diagnose.tables.names import BACKWARD, OPTIMIZER_STEP, matching

__all__ = ["updates"]


@shared_table
def updates(t: Tables) -> Intervals:
    """Return the times in which a step of an optimizer updates parameters."""
    steps = t.covering(t.calls(OPTIMIZER_STEP, Kind.ANNOTATION, Kind.OP))
    if not len(steps.start):
        return steps
    gradients = np.sort(t.trace.events.end[matching(t.trace, (Kind.OP, Kind.ANNOTATION), BACKWARD)])
    if not len(gradients):
        return steps
    last = gradients[np.maximum(np.searchsorted(gradients, steps.end, side="right") - 1, 0)]
    inside = (last > steps.start) & (last < steps.end)
    return Intervals(np.where(inside, last, steps.start), steps.end)
