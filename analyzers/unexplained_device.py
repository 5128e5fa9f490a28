"""A queued task did not start, and nothing in the trace shows why.

What it looks for
    Idle of 10 µs or more before a task that was already queued, that no other rule accounts for.

Why it costs
    The device stands although work is queued: a wait on an event of unrecorded work, a power or clock change, another
    process, or missing records.

What to do
    Capture with `diagnose trace`, which records stream waits and the device's clocks.

How sure
    The idle is certain; its cause is not named because the trace does not show it.
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
