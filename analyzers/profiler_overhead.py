"""The profiler's own work holds the host back.

What it looks for
    Idle that the profiler's own records (category `overhead`: buffer requests and flushes, instrumentation) cover by
    more than 30 %. Lazy loading of functions and modules has the same category, and is CUDA's first use (warm-up).

Why it costs
    It does not: this time is not there without the profiler. It is named so that nobody chases it.

What to do
    Nothing in the script. Capture fewer steps or fewer flags when the share is large.

How sure
    The records come from the profiler itself; only what they cover is booked here.
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
    legend=Legend("the profiler's own work", "#717c8a"),
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
