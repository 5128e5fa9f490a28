"""Takes the profiler's own time out of what findings cost.

Recording an event costs the host about a microsecond, so a step of many small operators is longer while it is
recorded. The capture also times steps that are not recorded; the difference is nobody's loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import hypot
from typing import Final

import numpy as np
import numpy.typing as npt

from diagnose.analyzers import profiler_overhead
from diagnose.analyzers.common.extent import of_whole
from diagnose.model.arrays import Ints
from diagnose.model.capture import CaptureInfo
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind, Note
from diagnose.model.intervals import quantiles
from diagnose.model.statistics import mean_error
from diagnose.replay.base import replay_base
from diagnose.replay.unrecorded import Unrecorded, unrecorded, unrecorded_host
from diagnose.tables import Tables, shared_table
from diagnose.tables.host import host_rows
from diagnose.tables.plain_steps import plain_steps, steady_beside
from diagnose.tables.run_steps import TIMING, Variation, variation
from diagnose.text.numbers import duration, growth, percent

__all__ = [
    "PROFILER",
    "as_unrecorded",
    "cost_per_event_ns",
    "estimate_note",
    "estimated_share",
    "overhead_share",
    "recording_ns",
    "removed_note",
    "removed_share",
    "shares_without_recording",
    "variation_note",
    "with_recording",
    "without_recording",
]

PROFILER: Final = profiler_overhead.META.id  # the rule whose idle time is the profiler's own work
MIN_RATIO_TO_CORRECT = 1.1  # of recorded and unrecorded steps; below it findings are reduced by what recording costs
MIN_REMOVED = 0.75  # of what recorded steps are longer; below it the rest is pointed out
UNDISTURBED = 0.1  # quantile of step times: what other processes add only makes steps longer
MIN_LOSS_SHARE = 0.01  # of a finding's loss
# Recording costs 0.7 to 1.6 µs an event on the machines it was measured on; a larger difference between recorded and
# unrecorded steps is noise of the machine, not the profiler.
MAX_EVENT_COST_NS = 2_000
MIN_ESTIMATED = 0.05  # of the step: less is no line
MIN_PASSING = 20  # operators that only call another one
PASSING_QUANTILE = 0.25  # the others of them do work of their own


def overhead_share(t: Tables) -> float | None:
    """Return how much longer recorded steps are than unrecorded ones, None where that is not known.

    Steps that vary by themselves are compared with what as much work takes unrecorded, where their times follow it.
    Where the unrecorded steps before and after the recorded ones disagree, it is not known.
    """
    beside = plain_steps(t)
    return _left_share(t) if beside is None or beside.agree else None


def removed_share(t: Tables) -> float:
    """Return by how much steps were longer while they were recorded than they are here, over unrecorded ones."""
    info, left = t.capture.info, _left_share(t)
    if info is None or left is None or not t.capture.event_cost_ns:
        return 0.0
    return max(0.0, 1e6 * float(np.median(info.light_ms)) / _plain_ns(t, info) - 1 - max(left, 0.0))


def _left_share(t: Tables) -> float | None:
    times = _times(t)
    return times[0] / times[1] - 1 if times is not None and times[1] > 0 else None


def _plain_ns(t: Tables, info: CaptureInfo) -> float:
    """Return what recorded steps are set against, ns: where the others disagree, only what exceeds all is recording.

    Where a script became faster before it was recorded, they are set against the steps behind them.
    """
    beside, before_ns = plain_steps(t), 1e6 * float(np.median(info.unprofiled_ms))
    if beside is None:
        return before_ns
    if beside.agree:
        return before_ns if beside.before_ns is not None else beside.after_ns or before_ns
    return max(before_ns, beside.before_ns or 0.0, beside.after_ns or 0.0)


def as_unrecorded(t: Tables) -> Unrecorded | None:
    """Return the capture as it would have been without the profiler, where that made its steps clearly longer.

    Steps of several ranks depend on each other, which the replay of one does not see; these stay as recorded.
    """
    times, info = _times(t), t.capture.info
    alone = info is not None and info.world_size == 1
    if times is None or not alone or times[0] < MIN_RATIO_TO_CORRECT * times[1] or _varies(t) is not None:
        return None
    assert info is not None
    if t.device_id < 0:
        return unrecorded_host(t, times[1], _undisturbed_ns(info))
    certain_ns = _certain_ns(times, info)
    return unrecorded(t, times[1], _undisturbed_ns(info), certain_ns) if replay_base(t).is_reliable else None


def removed_note(recorded: Tables, found: Unrecorded, t: Tables) -> Note:
    """State what was taken out of ``recorded``, and the step of ``t``, which is without it: the headline's."""
    times = _times(recorded)
    assert times is not None
    text = (
        f"Recording made the median step {growth(times[0] / times[1] - 1)} longer, {duration(times[0])} instead of "
        f"{duration(times[1])}. That was taken out, {found.event_cost_ns / 1e3:.1f} µs for each operator: all times "
        f"are of the steps {'as a replay has them ' if t.device_id >= 0 else ''}without it, whose mean is "
        f"{duration(t.steps.step_ns)}."
    )
    if found.recorded_ns - found.step_ns < MIN_REMOVED * (times[0] - times[1]):
        text += " The rest is not the profiler's: something else slowed recorded steps down. Record on an idle machine."
    return Note(text, PROFILER)


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
    """Return that steps vary by themselves, and what that means for the recording's cost; "" where they do not."""
    varies = variation(t.capture)
    if varies is None:
        return ""
    if _varies(t) is None:
        known = "those beside the recorded ones are alike, so the recorded steps were compared with these"
    elif _times(t) is not None:
        known = (
            "their times follow the size of the batch or the number of calls without gradients, so recorded and "
            "unrecorded steps were compared for as much work"
        )
    else:
        known = "how much longer the recording made them is not known"
    return (
        f"Steps vary by themselves: without recording a tenth took less than {varies.low_ns / 1e6:,.1f} ms and a tenth "
        f"more than {varies.high_ns / 1e6:,.1f} ms; {known}."
    )


def _varies(t: Tables) -> Variation | None:
    """Return how far steps differ, None where the recorded ones and those beside them do not by anything but work."""
    varies = variation(t.capture)
    return None if varies is not None and varies.per_work_ns is None and steady_beside(t) else varies


def _times(t: Tables) -> tuple[float, float] | None:
    """Return what a recorded step took and what it would have taken unrecorded, ns; None where that is not known."""
    info, run = t.capture.info, t.capture.run
    if info is None or not info.light_ms or not info.unprofiled_ms:
        return None
    varies = _varies(t)
    if t.capture.event_cost_ns:  # the steps are no longer the recorded ones
        # Without a device the cost was found by the median step: of a few steps one may have waited for a core.
        step_ns = t.steps.step_ns if t.device_id >= 0 else float(np.median(t.steps.end - t.steps.start))
        return step_ns, _plain_ns(t, info)
    if varies is None:
        return 1e6 * float(np.median(info.light_ms)), _plain_ns(t, info)
    if run is None or varies.per_work_ns is None or not (run.state == TIMING).any():
        return None
    in_window = run.state == TIMING
    expected = varies.base_ns + varies.per_work_ns * run.phase("work")[in_window]
    return float(run.step_ns[in_window].mean()), float(expected.mean())


def cost_per_event_ns(t: Tables) -> float:
    """Return what recording one event added to the training thread, ns; 0 where it was not measured."""
    times = _times(t)
    if times is None:
        return 0.0
    return max(0.0, min((times[0] - times[1]) / max(_num_recorded(t), 1.0), MAX_EVENT_COST_NS))


def recording_ns(t: Tables) -> float:
    """Return what recording its events added to a step, ns; 0 where it was not measured."""
    each_ns = cost_per_event_ns(t)
    return each_ns * _num_recorded(t) if each_ns > 0 else 0.0  # large traces without a capture need not be counted


def estimated_share(t: Tables) -> float:
    """Return the share of the step that recording takes at most, where no unrecorded steps show it; 0 for little.

    An operator that does nothing but call another one takes what calling and recording it take: the quickest quarter of
    those bound the cost of an event. Frames of Python are events too.
    """
    if t.steps.step_ns <= 0 or (t.capture.info is not None and t.capture.info.unprofiled_ms):
        return 0.0
    share = min(_pass_through_ns(t) * (_num_recorded(t) + _num_frames(t)) / t.steps.step_ns, 1.0)
    return share if share >= MIN_ESTIMATED else 0.0


def estimate_note(t: Tables) -> str:
    """Return about what recording adds to a step, of a recording without unrecorded steps beside it; "" for little."""
    share, frames, each_ns = estimated_share(t), _num_frames(t), _pass_through_ns(t)
    if not share:
        return ""
    what = f"{_num_recorded(t):,.0f} operators and calls" + (f" and {frames:,.0f} frames" if frames else "")
    return (
        f"Recording {what} takes the host up to {duration(share * t.steps.step_ns)} {of_whole(t)} "
        f"({percent(share, 0)}), as operators show that only call another one "
        f"({each_ns / 1e3:.1f} µs each): what the host takes is less without the profiler."
    )


@shared_table
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


def without_recording(t: Tables, found: list[Finding]) -> tuple[list[Finding], dict[str, float]]:
    """Deduct from each idle finding what recording the events in its intervals cost; return that by rule too, ns."""
    each_ns = cost_per_event_ns(t)
    if each_ns <= 0:
        return found, {}
    began = t.trace.events.start[_recorded(t)]
    left = [
        _deducted(f, each_ns * _num_inside(t, f.rule, began) / t.steps.num) if f.share is None else f for f in found
    ]
    return left, {a.rule: a.lost_ns - b.lost_ns for a, b in zip(found, left, strict=True) if a.lost_ns > b.lost_ns}


def shares_without_recording(
    shares: Mapping[str, float], recording: Mapping[str, float], step_ns: float
) -> Mapping[str, float]:
    """Return the shares of the causes as findings count them: what recording added is the profiler's own."""
    moved = {rule: min(ns / step_ns, shares[rule]) for rule, ns in recording.items() if rule in shares}
    found = {rule: share - moved.get(rule, 0.0) for rule, share in shares.items()}
    if moved:
        found[PROFILER] = found.get(PROFILER, 0.0) + sum(moved.values())
    return found


def with_recording(finding: Finding, recording: Mapping[str, float]) -> Finding:
    """Return the profiler's finding with what recording added to other causes, any other as it is."""
    added_ns = sum(recording.values())
    return replace(finding, lost_ns=finding.lost_ns + added_ns) if finding.rule == PROFILER and added_ns else finding


def _recorded(t: Tables) -> npt.NDArray[np.intp]:
    return t.host_rows(Kind.OP, Kind.RUNTIME, Kind.ANNOTATION)


def _num_recorded(t: Tables) -> float:
    return t.cached("num_recorded", lambda: len(t.in_window(_recorded(t))) / t.steps.num)


def _num_frames(t: Tables) -> float:
    return t.cached("num_frames", lambda: len(t.in_window(t.host_rows(Kind.PYTHON))) / t.steps.num)


def _num_inside(t: Tables, rule: str, began: Ints) -> int:
    rows = t.causes.of(rule)
    inside = np.searchsorted(began, t.causes.end[rows]) - np.searchsorted(began, t.causes.start[rows])
    return int(inside.sum())


def _deducted(finding: Finding, added_ns: float) -> Finding:
    taken = min(added_ns, finding.lost_ns)
    if taken < MIN_LOSS_SHARE * finding.lost_ns:
        return finding
    note = f"Recording adds about {duration(taken)} of it to each step, which is not counted in the loss."
    return replace(finding, lost_ns=finding.lost_ns - taken, evidence=(*finding.evidence, note))
