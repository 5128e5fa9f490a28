"""Takes the profiler's own time out of what findings cost.

Recording an event costs the host about a microsecond, so a step of many small operators is longer while it is
recorded. The capture also times steps that are not recorded; the difference is nobody's loss.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.tables import Tables
from diagnose.tables.run_steps import LIGHT, variation

__all__ = ["cost_per_event_ns", "overhead_share", "recording_ns", "variation_note", "without_recording"]

MIN_SHARE_OF_LOSS = 0.01  # of a finding's loss
# Recording costs 0.7 to 1.6 µs an event on the machines it was measured on; a larger difference between recorded and
# unrecorded steps is noise of the machine, not the profiler.
MAX_EVENT_COST_NS = 2_000


def overhead_share(t: Tables) -> float | None:
    """Return how much longer recorded steps are than unrecorded ones, None where that is not known.

    Steps that vary by themselves are compared with what as much work takes unrecorded, where their times follow it.
    """
    times = _times(t)
    return times[0] / times[1] - 1 if times is not None and times[1] > 0 else None


def variation_note(t: Tables) -> str:
    """Return that steps vary by themselves, and what that means for the recording's cost; "" where they do not."""
    varies = variation(t.capture)
    if varies is None:
        return ""
    known = (
        "their times follow the size of the batch or the number of calls without gradients, so recorded and unrecorded "
        "steps were compared for as much work"
        if _times(t) is not None
        else "how much longer the recording made them is not known"
    )
    return (
        f"Steps vary by themselves: without recording a tenth took less than {varies.low_ns / 1e6:,.1f} ms and a tenth "
        f"more than {varies.high_ns / 1e6:,.1f} ms; {known}."
    )


def _times(t: Tables) -> tuple[float, float] | None:
    """Return what a recorded step took and what it would have taken unrecorded, ns; None where that is not known."""
    info, run = t.capture.info, t.capture.run
    if info is None or not info.light_ms or not info.unprofiled_ms:
        return None
    varies = variation(t.capture)
    if varies is None:
        return 1e6 * statistics.median(info.light_ms), 1e6 * statistics.median(info.unprofiled_ms)
    if run is None or varies.per_work_ns is None or not (run.state == LIGHT).any():
        return None
    light = run.state == LIGHT
    expected = varies.base_ns + varies.per_work_ns * run.phase("work")[light]
    return float(run.step_ns[light].mean()), float(expected.mean())


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


def without_recording(t: Tables, found: list[Finding]) -> list[Finding]:
    """Deduct from each idle finding what recording the events in its stretches cost."""
    each_ns = cost_per_event_ns(t)
    if each_ns <= 0:
        return found
    began = t.trace.events.start[_recorded(t)]
    return [
        _deducted(f, each_ns * _num_inside(t, f.rule, began) / t.steps.num) if f.share is None else f for f in found
    ]


def _recorded(t: Tables) -> npt.NDArray[np.intp]:
    return t.host_rows(Kind.OP, Kind.RUNTIME, Kind.ANNOTATION)


def _num_recorded(t: Tables) -> float:
    return t.cached("num_recorded", lambda: len(t.in_window(_recorded(t))) / t.steps.num)


def _num_inside(t: Tables, rule: str, began: Ints) -> int:
    rows = t.causes.of(rule)
    inside = np.searchsorted(began, t.causes.end[rows]) - np.searchsorted(began, t.causes.start[rows])
    return int(inside.sum())


def _deducted(finding: Finding, added_ns: float) -> Finding:
    taken = min(added_ns, finding.lost_ns)
    if taken < MIN_SHARE_OF_LOSS * finding.lost_ns:
        return finding
    note = f"Recording adds about {taken / 1e6:.2f} ms of it to each step, which is not counted in the loss."
    return replace(finding, lost_ns=finding.lost_ns - taken, evidence=(*finding.evidence, note))
