"""The step without the profiler: the length that every number of a report is of.

The recorded step is evidence for shares and causes. A capture also times steps that are not recorded; their mean is the
step that the user has. The timing trace is scaled to it before any rule reads it, so that losses, savings and shares
are all of one step. Steps that are long now and then, such as those that save a checkpoint, are part of that mean and
hardly ever of the recorded steps: the trace is scaled to the mean of the others. So is what steps take longer than the
recorded ones because they grow with the run, which one place of the script does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Floats, Ints
from diagnose.model.capture import Capture, CaptureInfo
from diagnose.model.intervals import total
from diagnose.replay.unrecorded import in_order, moved_samples, warped
from diagnose.tables import Tables
from diagnose.tables.plain_steps import steps_of_run, unprofiled_steps, warm
from diagnose.tables.run_steps import MIN_RATIO

__all__ = ["TrueStep", "factor_of_job", "scaled", "true_step"]


MIN_USUAL = 0.01  # of the mean: some steps are usual ones


class TrueStep(NamedTuple):
    """Lengths of a step, ns."""

    mean_ns: float  # of the steps timed without the profiler
    usual_ns: float  # of the window that the rules read: the mean without steps that are long now and then
    recorded_ns: float  # as recorded
    is_measured: bool  # some steps were timed without the profiler

    @property
    def factor(self) -> float:
        """Return by how much the recorded steps have to be made longer."""
        return self.usual_ns / self.recorded_ns if self.recorded_ns > 0 else 1.0

    @property
    def rare_ns(self) -> float:
        """Return the part of the mean that steps take which the recording does not hold."""
        return self.mean_ns - self.usual_ns


def factor_of_job(ranks: Iterable[CaptureInfo]) -> float:
    """Return by how much the recorded steps of all ranks have to be made longer; 0 if none timed steps without it.

    Ranks wait for each other, so one factor holds for all: the median of theirs.
    """
    known = [warm(info.unprofiled_ms).mean() / np.mean(info.light_ms) for info in ranks if _is_measured(info)]
    return float(median(known)) if known else 0.0


def _is_measured(info: CaptureInfo) -> bool:
    return sum(info.light_ms) > 0 and sum(info.unprofiled_ms) > 0


def true_step(t: Tables) -> TrueStep:
    """Return the step that the user has; the recorded one if no step was timed without the profiler."""
    recorded_ns = t.steps.step_ns
    rare_ns = sum(stall.lost_ns for stall in t.stalls)
    in_window_ns = min(_rare_ns(t.steps.end - t.steps.start), rare_ns)
    times = unprofiled_steps(t)
    mean_ns = float(times.mean()) if len(times) else recorded_ns
    if not len(times):
        mean_ns += rare_ns - in_window_ns
    elif not len(steps_of_run(t)):  # those few right before the recording are hardly ever long ones
        mean_ns += rare_ns - min(_rare_ns(times), rare_ns)
    if (growing := t.growing_steps) is not None:
        rare_ns += growing.unrecorded_ns
    return TrueStep(mean_ns, max(mean_ns - rare_ns + in_window_ns, MIN_USUAL * mean_ns), recorded_ns, len(times) > 0)


def _rare_ns(length: Floats | Ints) -> float:
    """Return what steps take beyond the usual one, those that are long now and then, as a mean over all, ns."""
    usual = float(np.median(length))
    longer = length[length >= MIN_RATIO * usual] - usual
    return float(longer.sum() / len(length))


def scaled(t: Tables, factor: float) -> Capture:
    """Return the capture with its timing trace made as much longer or shorter, per step, as ``factor`` says.

    The device's clock shows what its tasks take, so only the time between them changes if that is enough.
    """
    capture, events = t.capture, t.trace.events
    start, end = t.steps.window
    edges, length = np.array([start, end]), np.array([float(end - start)])
    rate = np.array([factor])
    if t.device_id >= 0:
        busy, idle_ns = t.occupancy.busy, float(total(t.occupancy.idle))
        left = idle_ns - (1 - factor) * (end - start)
        if left > 0:
            edges = np.concatenate([[start], np.column_stack([busy.start, busy.end]).ravel(), [end]])
            length = np.diff(edges).astype(np.float64)
            rate = np.where(np.arange(len(length)) % 2 == 0, left / idle_ns, 1.0)
    knots = edges, start + np.append(0.0, np.cumsum(length * rate))
    begin, finish = warped(knots, events.start), warped(knots, events.end)
    return replace(
        capture,
        trace=replace(t.trace, events=in_order(replace(events, start=begin, end=np.maximum(begin, finish)))),
        samples=moved_samples(capture.samples, t.trace.epoch_ns, knots),
        unmoved_samples=capture.unmoved_samples or capture.samples,
        recorded_step_ns=capture.recorded_step_ns or t.steps.step_ns,
    )
