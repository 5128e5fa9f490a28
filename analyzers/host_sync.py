"""The host waits for the device, and the device then waits for the host.

What it looks for
    Gaps that begin within 50 µs of the end of a blocking call (`cudaStreamSynchronize`, `cudaDeviceSynchronize`, a
    copy that returns only when done) that was in flight on a thread that drives the device.

Why it costs
    The call returns when the queue is empty. Until the host has launched something again the device idles, and the
    lead that the host had built up is gone.

What to do
    Do not read values off the device in the loop: `.item()`, `.cpu()`, `print(loss)`, `if tensor:`, `nonzero` and
    boolean indexing all wait. Keep values on the device, or read them a step later.

How sure
    High: the call and the gap meet in time. A gap that the loader or a long Python stretch fills is not booked here.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.common.idle_findings import IdleRule, Occurrences, idle_finding
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals, covered, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host_gaps import host_gaps
from diagnose.tables.syncs import RETURN_NS, blocking_calls

META = RuleMeta(
    id="host-sync",
    kind="idle",
    order=100,
    legend=Legend("the host waited for the device to drain", "#e5484d"),
    changes=("defer-sync", "stay-on-device"),
    cause="device-wait",
)
MIN_PYTHON_SHARE = 0.5  # a gap that one stretch of Python fills to this share is that stretch's


def _begun_by_sync(t: Tables) -> npt.NDArray[np.bool_]:
    gaps, events = t.gaps, t.trace.events
    calls = blocking_calls(t)
    if not len(calls) or not len(gaps.start):
        return np.zeros(len(gaps.start), bool)
    ends = np.sort(events.end[calls])
    i = np.minimum(np.searchsorted(ends, gaps.start, side="left"), len(ends) - 1)
    order = np.argsort(events.end[calls], kind="stable")
    began = events.start[calls][order][i]
    return (began <= gaps.start) & (ends[i] >= gaps.start) & (ends[i] - gaps.start <= RETURN_NS)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim the host's part of gaps that a blocking call's return begins."""
    gaps = t.gaps
    mine = _begun_by_sync(t)
    if not mine.any():
        return EMPTY
    python = covered(host_gaps(t), gaps.start, gaps.queued_at)
    mine &= python < MIN_PYTHON_SHARE * np.maximum(gaps.end - gaps.start, 1)
    return intersect(left, gaps.host_part(mine))


def find(t: Tables) -> list[Finding]:
    """Name the idle time after blocking calls with the operators that made them."""
    return idle_finding(
        t, IdleRule(META.id, "The host waits for the device, which then runs dry", probe="start", evidence=_calls)
    )


def _calls(t: Tables, o: Occurrences) -> list[str]:
    events, calls = t.trace.events, blocking_calls(t)
    order = np.argsort(events.end[calls], kind="stable")
    calls = calls[order]
    i = np.minimum(np.searchsorted(events.end[calls], t.gaps.start[o.gap]), len(calls) - 1)
    parents = Counter(_parent(t, int(row)) for row in calls[i].tolist()[:500])
    per_step = len(t.in_window(calls)) / t.steps.num
    listed = ", ".join(f"{name} ({count}×)" for name, count in parents.most_common(3))
    return [f"{per_step:.1f} blocking calls a step; the idle begins as these return: {listed}."]


def _parent(t: Tables, row: int) -> str:
    layers = t.work_layers.get(int(t.trace.events.thread[row]))
    names = [t.name(r) for r in layers.at(int(t.trace.events.start[row]))] if layers else []
    ops = [name for name in names if not name.startswith("ProfilerStep#") and name != t.name(row)]
    return f"{ops[0]} in {t.name(row)}" if ops else t.name(row)
