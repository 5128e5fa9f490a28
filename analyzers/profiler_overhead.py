"""The profiler's own work slows the CPU down.

What it looks for
    Idle gaps that the profiler's own records (category `overhead`) cover by more than 30%.

Why it costs
    It costs nothing in a normal run: without the profiler, this time is gone.

What to do
    Change nothing in the script. If the share is large, record fewer steps or turn profiler flags off.

How sure
    High.
"""

from __future__ import annotations

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, among, covered, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.names import LOADS_CODE, matching, rows_of

META = RuleMeta(
    id="profiler-overhead",
    kind="trust",
    order=10,
    legend=Legend("the profiler's own work"),
    cause="host-work",
)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim what the profiler's records cover of gaps that they explain."""
    rows = rows_of(t.trace, Kind.OVERHEAD)
    records = t.covering(rows[~among(rows, matching(t.trace, (Kind.OVERHEAD,), LOADS_CODE))])
    gaps = t.gaps
    share = covered(records, gaps.start, gaps.end) / (gaps.end - gaps.start)
    mine = share > 0.3  # below this the gap has another cause that the record merely overlaps
    return intersect(intersect(left, Intervals(gaps.start[mine], gaps.end[mine])), records)


def find(t: Tables) -> list[Finding]:
    """Name the idle time that is the profiler's own."""
    return idle_finding(t, IdleRule(META.id, "The profiler itself delays the step; this time is not there without it"))
