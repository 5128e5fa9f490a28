"""How far what a finding costs may be off: few steps were recorded, and recording them took time.

What a step loses is a mean of the recorded steps, and a run has others: it lies as much above that mean as below it. So
a recorded loss is no upper end of what a change saves, and no lower one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Floats, Ints
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals, covered
from diagnose.model.rules import HOST_WORK, Cause
from diagnose.model.statistics import mean_error
from diagnose.replay.base import replay_base
from diagnose.tables import Tables
from diagnose.tables.host_work import loads_in_process
from diagnose.tables.run_steps import MIN_STEPS as MIN_PLAIN
from diagnose.tables.run_steps import PLAIN, usable_steps

__all__ = ["EXACT", "MAX_ERROR", "MIN_STEPS", "REST_GAINS", "CostError", "cost_error"]

MIN_STEPS = 3  # whose costs differ: the quantile for two is 12.7 standard errors, which states nothing
# Without a device: what the rest of the step gains where Python that ran beside it no longer takes the caches. Two
# repaired scripts saved 2 and 6 % more than loading takes of their plain steps (docs/evaluation.md).
REST_GAINS = 0.05
MAX_ERROR = 1.0  # of what comes in one step of ten: the quantile stands for means of values that are more alike


class CostError(NamedTuple):
    """Shares by which a finding may cost less and more per step than it says."""

    less: float = 0.0
    more: float = 0.0


EXACT = CostError()


def cost_error(t: Tables, finding: Finding, cause: Cause, bare_ns: float) -> CostError:
    """Return by which shares a finding may cost less or more per step than the recorded steps show, 95 %.

    ``bare_ns`` is the step without what recording cost. Loading on the training thread is timed in steps without the
    profiler too: what it takes of those is within both ends. Nothing is known of fewer than `MIN_STEPS` steps.
    """
    part = replay_base(t).t
    if finding.share is not None or finding.lost_ns <= 0:
        return EXACT
    sampled = 0.0
    if part.steps.num >= MIN_STEPS:
        edges = np.append(part.steps.start, part.steps.window_end)
        sampled = min(mean_error((_of_causes(t, finding, edges) + _of_tasks(t, finding, edges)).tolist()), MAX_ERROR)
    unrecorded = _plain_loading(t) * bare_ns / finding.lost_ns if cause == "loading" else 0.0
    gains = REST_GAINS if t.device_id < 0 and cause in HOST_WORK else 0.0
    return CostError(
        less=max(sampled, 1 - unrecorded if unrecorded else 0.0),
        more=max(sampled, min(unrecorded - 1, MAX_ERROR)) + gains,
    )


def _plain_loading(t: Tables) -> float:
    """Return the share of steps without the profiler that loading takes on the training thread; 0 where not timed."""
    run = t.capture.run
    if run is None or t.device_id >= 0 or not loads_in_process(t):
        return 0.0
    rows = np.flatnonzero(usable_steps(run, t.capture) & (run.state == PLAIN) & (run.step_ns > 0))
    if len(rows) < MIN_PLAIN:
        return 0.0
    return float(np.median(run.phase("loading")[rows] / run.step_ns[rows]))


def _of_causes(t: Tables, finding: Finding, edges: Ints) -> Floats:
    """Return the time of each step that the finding's rule accounts for: without the device, or without work."""
    rows = t.causes.of(finding.rule)
    inside = covered(Intervals(t.causes.start[rows], t.causes.end[rows]), edges[:-1], edges[1:])
    return inside.astype(np.float64)


def _of_tasks(t: Tables, finding: Finding, edges: Ints) -> Floats:
    """Return the time of the device tasks that the finding accounts for, by the step that they end in."""
    start, end = t.tasks.start[finding.tasks], t.tasks.end[finding.tasks]
    step = np.searchsorted(edges, end, side="left") - 1
    inside = (step >= 0) & (step < len(edges) - 1)
    return np.bincount(step[inside], (end - start)[inside].astype(np.float64), len(edges) - 1).astype(np.float64)
