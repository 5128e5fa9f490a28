"""What recording costs, and the steps without it.

Recording an event costs the host about a microsecond, so a step of many small operators is longer while it is
recorded. A capture also times steps that are not recorded, which show by how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot
from typing import Final

import numpy as np
import numpy.typing as npt

from diagnose.analyzers import META, profiler_overhead
from diagnose.analyzers.common.extent import of_whole
from diagnose.model.arrays import Floats, Ints
from diagnose.model.capture import CaptureInfo
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import quantiles
from diagnose.model.statistics import mean_error
from diagnose.replay.base import replay_base
from diagnose.replay.unrecorded import (
    USUAL_EVENT_NS,
    Unrecorded,
    recording_weight,
    unrecorded,
    unrecorded_host,
)
from diagnose.tables import Tables
from diagnose.tables.host import host_rows
from diagnose.tables.plain_steps import steady_beside
from diagnose.tables.run_steps import Variation, variation
from diagnose.text.numbers import duration, growth, percent

__all__ = [
    "PROFILER",
    "as_unrecorded",
    "estimate_note",
    "estimated_share",
    "recorded_in",
    "recording_note",
    "variation_note",
]

PROFILER: Final = profiler_overhead.META.id  # the rule whose idle time is the profiler's own work
MIN_RATIO_TO_CORRECT = 1.1  # of recorded and unrecorded steps; below it steps are only scaled
MIN_STATED = 0.05  # of the step, by which recorded steps are longer or shorter; less is no line
UNDISTURBED = 0.1  # quantile of step times: what other processes add only makes steps longer
# Recording costs 0.7 to 1.6 µs an event on the machines it was measured on; a larger difference between recorded and
# unrecorded steps is noise of the machine, not the profiler.
MAX_EVENT_COST_NS = 2_000
MIN_ESTIMATED = 0.05  # of the step: less is no line
MIN_PASSING = 20  # operators that only call another one
PASSING_QUANTILE = 0.25  # the others of them do work of their own


def _plain_ns(t: Tables, info: CaptureInfo) -> float:
    """Return what recorded steps are set against, ns: where the others disagree, only what exceeds all is recording.

    Where a script became faster before it was recorded, they are set against the steps behind them.
    """
    beside, before_ns = t.plain_steps, 1e6 * float(np.median(info.unprofiled_ms))
    if beside is None:
        return before_ns
    if beside.agree:
        return before_ns if beside.before_ns is not None else beside.after_ns or before_ns
    return max(before_ns, beside.before_ns or 0.0, beside.after_ns or 0.0)


def as_unrecorded(t: Tables) -> Unrecorded | None:
    """Return the capture as it would have been without the profiler, if that made its steps clearly longer.

    Steps of several ranks depend on each other, which the replay of one does not see; these stay as recorded.
    """
    info = t.capture.info
    if info is None or info.world_size > 1 or not info.light_ms or not info.unprofiled_ms or _varies(t) is not None:
        return None
    times = 1e6 * float(np.median(info.light_ms)), _plain_ns(t, info)
    if times[0] < MIN_RATIO_TO_CORRECT * times[1]:
        return None
    if t.device_id < 0:
        return unrecorded_host(t, times[1], _undisturbed_ns(info))
    certain_ns = _certain_ns(times, info)
    return unrecorded(t, times[1], _undisturbed_ns(info), certain_ns) if replay_base(t).is_reliable else None


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


def _certain_ns(times: tuple[float, float], info: CaptureInfo) -> float:
    """Return how much longer steps are at least while they are recorded, 95 %: both sides are of few steps."""
    recorded, plain = times
    error_ns = hypot(recorded * mean_error(info.light_ms), plain * mean_error(info.unprofiled_ms))
    return max(recorded - plain - error_ns, 0.0)


def _undisturbed_ns(info: CaptureInfo) -> float:
    """Return how much longer the steps were while they were recorded that other things disturbed least."""
    recorded, plain = (quantiles(np.array(times), UNDISTURBED)[0] for times in (info.light_ms, info.unprofiled_ms))
    return 1e6 * (recorded - plain)


def variation_note(t: Tables) -> str:
    """Return that steps vary by themselves, "" if they do not."""
    varies = variation(t.capture)
    if varies is None:
        return ""
    return (
        f"Step times vary without the profiler too: a tenth are below {varies.low_ns / 1e6:,.1f} ms, a tenth above "
        f"{varies.high_ns / 1e6:,.1f} ms."
    )


def _varies(t: Tables) -> Variation | None:
    """Return how far steps differ, None where the recorded ones and those beside them do not by anything but work."""
    varies = variation(t.capture)
    return None if varies is not None and varies.per_work_ns is None and steady_beside(t) else varies


def estimated_share(t: Tables) -> float:
    """Return the share of the step that recording takes at most, where no unrecorded steps show it; 0 for little.

    An operator that does nothing but call another one takes what calling and recording it take: the quickest quarter of
    those bound the cost of an event. Frames of Python are events too.
    """
    return _estimate(t)[0]


def _estimate(t: Tables) -> tuple[float, float, float, float]:
    """Return that share, how many operators and calls and how many frames a step has, and what each takes, ns."""
    if t.steps.step_ns <= 0 or (t.capture.info is not None and t.capture.info.unprofiled_ms):
        return 0.0, 0.0, 0.0, 0.0
    each_ns = _pass_through_ns(t)
    recorded, frames = (len(t.in_window(rows)) / t.steps.num for rows in (_recorded(t), t.host_rows(Kind.PYTHON)))
    share = min(each_ns * (recorded + frames) / t.steps.step_ns, 1.0)
    return share if share >= MIN_ESTIMATED else 0.0, recorded, frames, each_ns


def estimate_note(t: Tables) -> str:
    """Return about what recording adds to a step, of a recording without unrecorded steps beside it; "" for little."""
    share, recorded, frames, each_ns = _estimate(t)
    if not share:
        return ""
    what = f"{recorded:,.0f} operators and calls" + (f" and {frames:,.0f} frames" if frames else "")
    return (
        f"Recording {what} takes the host up to {duration(share * t.steps.step_ns)} {of_whole(t)} "
        f"({percent(share, 0)}), as operators show that only call another one "
        f"({each_ns / 1e3:.1f} µs each): what the host takes is less without the profiler."
    )


def _pass_through_ns(t: Tables) -> float:
    """Return what an operator takes beside the only other one that it calls, ns; 0 where there are too few."""
    events = t.trace.events
    found: list[Ints] = []
    for thread in t.threads:
        rows = host_rows(t.trace, thread, Kind.OP, Kind.RUNTIME)
        start, end = events.start[rows], events.end[rows]
        is_op = events.kind[rows] == Kind.OP
        if len(rows) < 2:
            continue
        nested = is_op[:-1] & is_op[1:] & (start[1:] < end[:-1]) & (end[1:] <= end[:-1])
        behind = np.searchsorted(start, end[1:], side="left")  # the first that begins after the child
        alone = np.append(start, np.iinfo(np.int64).max)[behind] >= end[:-1]
        mine = np.flatnonzero(nested & alone)
        found.append((end - start)[mine] - (end - start)[mine + 1])
    each = np.concatenate(found) if found else np.empty(0, np.int64)
    if len(each) < MIN_PASSING:
        return 0.0
    return min(*quantiles(each, PASSING_QUANTILE), MAX_EVENT_COST_NS)


def recorded_in(t: Tables, found: Sequence[Finding]) -> dict[str, float]:
    """Return by rule what recording adds to the host's part of a finding, ns a step, if no unrecorded steps show it.

    Frames of Python cost less than operators, and calls of the runtime more.
    """
    info = t.capture.info
    if t.device_id < 0 or (info is not None and info.unprofiled_ms):
        return {}
    rows = t.host_rows(Kind.OP, Kind.RUNTIME, Kind.ANNOTATION, Kind.PYTHON)
    began, weight = t.trace.events.start[rows], recording_weight(t.trace.events.kind[rows])
    inflated = [f.rule for f in found if META[f.rule].inflated]
    return {rule: USUAL_EVENT_NS * _inside(t, rule, began, weight) / t.steps.num for rule in inflated}


def _recorded(t: Tables) -> npt.NDArray[np.intp]:
    return t.host_rows(Kind.OP, Kind.RUNTIME, Kind.ANNOTATION)


def _inside(t: Tables, rule: str, began: Ints, weight: Floats) -> float:
    rows = t.causes.of(rule)
    so_far = np.append(0.0, np.cumsum(weight))
    inside = so_far[np.searchsorted(began, t.causes.end[rows])] - so_far[np.searchsorted(began, t.causes.start[rows])]
    return float(inside.sum())
