"""A queued kernel did not start, and the trace does not show why.

What it looks for
    Gaps of 10 µs or more before a queued kernel that no other rule explains.

Why it costs
    The GPU is idle although work is queued. Possible causes: an unrecorded event, a clock change, another process,
    missing records.

What to do
    Record with `diagnose trace`, which includes stream waits and GPU clocks.

How sure
    High for the idle time.
"""

from __future__ import annotations

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables

META = RuleMeta(
    id="unexplained-device",
    kind="idle",
    order=190,
    legend=Legend("queued; the trace does not show what held it", "#b3bac4"),
    explains=False,
)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim what is left of the device's parts, before tasks that the file shows to be queued."""
    return intersect(left, t.gaps.device_part(t.gaps.launch >= 0))


def find(t: Tables) -> list[Finding]:
    """State how much idle before queued work has no visible cause."""
    return idle_finding(
        t, IdleRule(META.id, "Queued work does not start, for a reason the trace does not show", confidence="low")
    )
