"""What each recorded step consists of: the idle time of its causes, and the rest."""

from __future__ import annotations

import numpy as np

from diagnose.model.charts import BUSY, StepParts
from diagnose.model.intervals import Intervals, covered
from diagnose.tables import Tables

__all__ = ["step_parts"]

MAX_STEPS = 2_000  # of the chart: more than a screen has room for


def step_parts(t: Tables) -> tuple[StepParts, ...]:
    """Return the steady steps with their own numbers, each from its begin to that of the next one."""
    first, causes = t.steps.start, t.causes
    last = np.append(first[1:], t.steps.end[-1:])
    parts = {
        rule: covered(_of(t, rule), first, last)
        for i, rule in enumerate(causes.rules)
        if bool((causes.rule == i).any())
    }
    idle = sum(parts.values(), np.zeros(len(first), np.int64))
    if t.device_id >= 0:
        parts[BUSY] = np.maximum(last - first - idle, 0)
    return tuple(
        StepParts(
            int(t.steps.number[i]),
            int(t.steps.end[i] - t.steps.start[i]),
            {name: int(each[i]) for name, each in parts.items() if each[i] > 0},
        )
        for i in range(min(t.steps.num, MAX_STEPS))
    )


def _of(t: Tables, rule: str) -> Intervals:
    rows = t.causes.of(rule)
    return Intervals(t.causes.start[rows], t.causes.end[rows])
