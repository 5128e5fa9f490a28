"""Python's garbage collector stops the training thread.

What it looks for
    Idle time while the collector runs on the training thread.

Why it costs
    A full collection visits every tracked Python object. That can take hundreds of milliseconds.

What to do
    After warm-up, call `gc.freeze()` and `gc.disable()`. Then call `gc.collect()` on a schedule, such as every 100
    steps.

How sure
    The records are exact. Needs `diagnose trace`, or torch.profiler with `record_python_gc_info` and `with_stack=True`.
"""

from __future__ import annotations

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, thread_of
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.calls import collections
from diagnose.tables.run_steps import COLLECTION

META = RuleMeta(
    id="gc-pause",
    kind="idle",
    order=50,
    host_order=30,
    legend=Legend("Python's garbage collector ran"),
    changes=("schedule-gc",),
    cause="collection",
    needs=("garbage collections",),
)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle during collections, which the profiler records or the capture has noted."""
    return intersect(intersect(left, t.gaps.host_part()), collections(t))


def find(t: Tables) -> list[Finding]:
    """Name the idle time of garbage collections, but of those that come in one step of many: `periodic-stall` does.

    Of them a dozen recorded steps hold too many or none; the whole run shows how often they come.
    """
    if any(stall.phase == COLLECTION for stall in t.stalls):
        return []
    title = f"Python's garbage collector stops the {thread_of(t)}"
    return idle_finding(t, IdleRule(META.id, title, cause=META.cause))
