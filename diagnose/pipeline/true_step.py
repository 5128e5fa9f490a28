"""The step without the profiler: the length that every number of a report is of.

The recorded step is evidence for shares and causes. A capture also times steps that are not recorded; their mean is the
step that the user has. The timing trace is scaled to it before any rule reads it, so that losses, savings and shares
are all of one step. Steps that are long now and then, such as those that save a checkpoint, are part of that mean and
hardly ever of the recorded steps: the trace is scaled to the mean of the others. So is what steps take longer than the
recorded ones because they grow with the run, which one place of the script does. Where the steps
before and after the recorded ones differ, something else slowed the longer ones, and the others are the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import hypot
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from diagnose.analyzers import META, profiler_overhead
from diagnose.analyzers.common.idle_findings import of_whole
from diagnose.model.arrays import Floats, Ints
from diagnose.model.capture import Capture, CaptureInfo
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import quantiles, total
from diagnose.model.statistics import mean_error
from diagnose.replay.build import replay_base
from diagnose.replay.unrecorded import (
    USUAL_EVENT_NS,
    Unrecorded,
    in_order,
    moved_samples,
    recording_weight,
    unrecorded,
    unrecorded_host,
    warped,
)
from diagnose.tables import Tables
from diagnose.tables.host import host_rows
from diagnose.tables.plain_steps import steady_beside, steps_of_run, unprofiled_steps, warm
from diagnose.tables.run_steps import MIN_RATIO, MIN_RUN_STEPS, PLAIN, usable_steps, variation
from diagnose.text.numbers import duration, growth, percent

# What recording costs, and the steps without it.
#
# Recording an event costs the host about a microsecond, so a step of many small operators is longer while it is
# recorded. A capture also times steps that are not recorded, which show by how much.

PROFILER: Final = profiler_overhead.META.id  # the rule whose idle time is the profiler's own work
MIN_RATIO_TO_CORRECT = 1.1  # of recorded and unrecorded steps; below it steps are only scaled
MIN_STATED = 0.05  # of the step, that recording takes: less is no line
UNDISTURBED = 0.1  # quantile of step times: what other processes add only makes steps longer
# Recording costs 0.7 to 1.6 µs an event on the machines it was measured on: operators that take longer beside the one
# that they call do work of their own.
MAX_PASSING_NS = 2_000
PASSING_QUANTILE = 0.25  # the others of them do work of their own


def _plain_ns(t: Tables, info: CaptureInfo) -> float:
    """Return what recorded steps are set against, ns: where the others disagree, only what exceeds all is recording.

    Where a script became faster before it was recorded, they are set against the steps behind them.
    """
    beside, before_ns = t.plain_steps, 1e6 * float(np.median(info.unprofiled_ms))
    if beside is None or not beside.agree:
        known = () if beside is None else (beside.before_ns or 0.0, beside.after_ns or 0.0)
        return float(max(before_ns, *known, 0.0))
    return before_ns if beside.before_ns is not None else beside.after_ns or before_ns


def as_unrecorded(t: Tables) -> Unrecorded | None:
    """Return the capture as it would have been without the profiler, if that made its steps clearly longer.

    Steps of several ranks depend on each other, which the replay of one does not see; these stay as recorded.
    """
    info = t.capture.info or CaptureInfo()
    if info.world_size > 1 or not info.light_ms or not info.unprofiled_ms:
        return None
    varies = variation(t.capture)
    if varies is not None and (varies.per_work_ns is not None or not steady_beside(t)):
        return None  # the recorded steps and those around them differ by more than the work in them
    recorded, plain = 1e6 * float(np.median(info.light_ms)), _plain_ns(t, info)
    host_ns = _plain_host_ns(t)
    if recorded < MIN_RATIO_TO_CORRECT * plain:
        return unrecorded(t, float("inf"), host_ns=host_ns) if replay_base(t).is_reliable else None
    # Of the steps that other things disturbed least; and what is certain, 95 %: both sides are of few steps.
    quickest = (quantiles(np.array(times), UNDISTURBED)[0] for times in (info.light_ms, info.unprofiled_ms))
    undisturbed_ns = 1e6 * float(next(quickest) - next(quickest))
    if t.device_id < 0:
        return unrecorded_host(t, plain, undisturbed_ns)
    error_ns = hypot(recorded * mean_error(info.light_ms), plain * mean_error(info.unprofiled_ms))
    certain_ns = max(recorded - plain - error_ns, 0.0)
    return unrecorded(t, plain, undisturbed_ns, certain_ns, host_ns) if replay_base(t).is_reliable else None


def _plain_host_ns(t: Tables) -> float:
    """Return what the host takes at most for a step that is not recorded, ns; infinity where that is not known.

    Its quickest step waited least for room in the device's queue, as one behind a wait for the device.
    """
    run = t.capture.run
    if t.device_id < 0 or run is None:
        return float("inf")
    took = run.took_ns[usable_steps(run, t.capture) & (run.state == PLAIN)]
    return float(took.min()) if len(took) >= MIN_RUN_STEPS else float("inf")


def recording_note(recorded_ns: float, usual_ns: float) -> str:
    """Return how long the recorded steps were, "" if they were about as long as the others."""
    longer = recorded_ns / usual_ns - 1 if usual_ns > 0 else 0.0
    if abs(longer) < MIN_STATED:
        return ""
    what = f"{growth(abs(longer))} {'longer' if longer > 0 else 'shorter'}"
    return (
        f"Recorded steps took {duration(recorded_ns)}, {what} than steps without the profiler. All times are of a step "
        f"without it, {duration(usual_ns)}."
    )


def variation_note(t: Tables) -> str:
    """Return that steps vary by themselves, "" if they do not."""
    varies = variation(t.capture)
    if varies is None:
        return ""
    return (
        f"Step times vary without the profiler too: a tenth are below {varies.low_ns / 1e6:,.1f} ms, a tenth above "
        f"{varies.high_ns / 1e6:,.1f} ms."
    )


def estimated_share(t: Tables) -> float:
    """Return the share of the step that recording takes at most, where no unrecorded steps show it; 0 for little.

    An operator that does nothing but call another one takes what calling and recording it take: the quickest quarter of
    those bound the cost of an event. Frames of Python are events too.
    """
    if t.steps.step_ns <= 0 or (t.capture.info or CaptureInfo()).unprofiled_ms:
        return 0.0
    return _estimate(t)[0]


def _estimate(t: Tables) -> tuple[float, float, float, float]:
    """Return that share, how many operators and calls and how many frames a step has, and what each takes, ns."""
    each_ns = _pass_through_ns(t)
    kinds = (Kind.OP, Kind.RUNTIME, Kind.ANNOTATION), (Kind.PYTHON,)
    recorded, frames = (len(t.in_window(t.host_rows(*each))) / t.steps.num for each in kinds)
    share = min(each_ns * (recorded + frames) / t.steps.step_ns, 1.0)
    return share if share >= MIN_STATED else 0.0, recorded, frames, each_ns


def estimate_note(t: Tables) -> str:
    """Return about what recording adds to a step, of a recording without unrecorded steps beside it; "" for little."""
    if not estimated_share(t):
        return ""
    share, recorded, frames, each_ns = _estimate(t)
    what = f"{recorded:,.0f} operators and calls" + (f" and {frames:,.0f} frames" if frames else "")
    return (
        f"Recording {what} takes the host up to {duration(share * t.steps.step_ns)} {of_whole(t)} "
        f"({percent(share, 0)}), as operators show that only call another one "
        f"({each_ns / 1e3:.1f} µs each): what the host takes is less without the profiler."
    )


def _pass_through_ns(t: Tables) -> float:
    """Return what an operator takes beside the only other one that it calls, ns; 0 where there are too few."""
    events = t.trace.events
    found: list[Ints] = [np.empty(0, np.int64)]
    for thread in t.threads:
        rows = host_rows(t.trace, thread, Kind.OP, Kind.RUNTIME)
        start, end = events.start[rows], events.end[rows]
        is_op = events.kind[rows] == Kind.OP
        nested = is_op[:-1] & is_op[1:] & (start[1:] < end[:-1]) & (end[1:] <= end[:-1])
        behind = np.searchsorted(start, end[1:], side="left")  # the first that begins after the child
        alone = np.append(start, np.iinfo(np.int64).max)[behind] >= end[:-1]
        mine = np.flatnonzero(nested & alone)
        found.append((end - start)[mine] - (end - start)[mine + 1])
    each = np.concatenate(found)
    # Operators that only call another one.
    return min(*quantiles(each, PASSING_QUANTILE), MAX_PASSING_NS) if len(each) >= 20 else 0.0


def recorded_in(t: Tables, found: Sequence[Finding]) -> dict[str, float]:
    """Return by rule what recording adds to the host's part of a finding, ns a step, if no unrecorded steps show it.

    Frames of Python cost less than operators, and calls of the runtime more.
    """
    if t.device_id < 0 or (t.capture.info or CaptureInfo()).unprofiled_ms:
        return {}
    rows = t.host_rows(Kind.OP, Kind.RUNTIME, Kind.ANNOTATION, Kind.PYTHON)
    began, weight = t.trace.events.start[rows], recording_weight(t.trace.events.kind[rows])
    so_far = np.append(0.0, np.cumsum(weight))
    added: dict[str, float] = {}
    for rule in (f.rule for f in found if META[f.rule].inflated):
        at = t.causes.of(rule)
        begin, end = (np.searchsorted(began, time[at]) for time in (t.causes.start, t.causes.end))
        added[rule] = USUAL_EVENT_NS * float((so_far[end] - so_far[begin]).sum()) / t.steps.num
    return added


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
    measured = [info for info in ranks if sum(info.light_ms) > 0 and sum(info.unprofiled_ms) > 0]
    return (
        float(median(warm(info.unprofiled_ms).mean() / np.mean(info.light_ms) for info in measured))
        if measured
        else 0.0
    )


def true_step(t: Tables) -> TrueStep:
    """Return the step that the user has; the recorded one if no step was timed without the profiler."""
    recorded_ns = t.steps.step_ns
    again_ns = t.recompiling.lost_ns if t.recompiling is not None else 0.0
    rare_ns = sum(stall.lost_ns for stall in t.stalls) + again_ns
    in_window_ns = min(excess_ns(t.steps.end - t.steps.start), rare_ns)
    times = unprofiled_steps(t)
    is_measured, mean_ns = len(times) > 0, float(times.mean()) if len(times) else recorded_ns
    if not len(steps_of_run(t)):  # those few right before the recording are hardly ever long ones
        mean_ns += rare_ns - (min(excess_ns(times), rare_ns) if is_measured else in_window_ns)
    else:  # these are without what compiling takes
        mean_ns += again_ns
    if (growing := t.growing_steps) is not None:
        rare_ns += growing.unrecorded_ns
    plain = t.plain_steps
    if plain is not None and not plain.agree:
        quieter_ns = min(plain.before_ns or 0.0, plain.after_ns or 0.0) or mean_ns  # of usual steps
        undisturbed_ns = max(recorded_ns, quieter_ns + in_window_ns)
        mean_ns = min(mean_ns, undisturbed_ns + rare_ns - in_window_ns)
    return TrueStep(mean_ns, max(mean_ns - rare_ns + in_window_ns, MIN_USUAL * mean_ns), recorded_ns, is_measured)


def excess_ns(length: Floats | Ints) -> float:
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
