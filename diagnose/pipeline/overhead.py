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

__all__ = ["cost_per_event_ns", "overhead_share", "recording_ns", "without_recording"]

MIN_SHARE_OF_LOSS = 0.01  # of a finding's loss
# Recording costs 0.7 to 1.6 µs an event on the machines it was measured on; a larger difference between recorded and
# unrecorded steps is noise of the machine, not the profiler.
MAX_EVENT_COST_NS = 2_000


def overhead_share(t: Tables) -> float | None:
    """Return how much longer recorded steps are than unrecorded ones, None where that was not measured."""
    info = t.capture.info
    if info is None or not info.light_ms or not info.unprofiled_ms:
        return None
    unprofiled_ms = statistics.median(info.unprofiled_ms)
    return statistics.median(info.light_ms) / unprofiled_ms - 1 if unprofiled_ms > 0 else None


def cost_per_event_ns(t: Tables) -> float:
    """Return what recording one event added to the training thread, ns; 0 where it was not measured."""
    info = t.capture.info
    if info is None or not info.light_ms or not info.unprofiled_ms:
        return 0.0
    added_ns = 1e6 * (statistics.median(info.light_ms) - statistics.median(info.unprofiled_ms))
    return max(0.0, min(added_ns / max(_num_recorded(t), 1.0), MAX_EVENT_COST_NS))


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
    return [_deducted(f, each_ns * _num_inside(t, f.rule, began) / t.steps.num) for f in found]


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
