"""The trace lacks GPU work that ran.

What it looks for
    More than 0.1% of the launches have no kernel in the file. Also gaps of 1 ms or more inside a CUDA graph.

Why it costs
    The GPU was busy with kernels that the file does not contain, so part of the idle time is not real.

What to do
    Record fewer steps: `diagnose trace --steps 3 train.py`. If CUDA graphs lack kernels, use a newer driver.

How sure
    High for the missing kernels, medium for the idle time.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals, among, covered, intersect, overlaps, subtract, union
from diagnose.model.limits import AT_ONCE_NS, LONG_NS
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.lost import MIN_LOST_SHARE, device_launches, graph_holes, lost_share
from diagnose.text.numbers import percent

META = RuleMeta(
    id="lost-records",
    kind="trust",
    order=20,
    legend=Legend("tasks are missing from the trace"),
    changes=("capture-complete-records",),
)
ADVICE = (
    Advice(
        id="capture-complete-records",
        title="Capture again with complete records",
        numerics=identical(),
        before="",
        after="diagnose trace --steps 3 {script}",
        needs="a few whole steps; for CUDA graphs, a driver and torch that record their nodes",
        most=0.0,
        records_again=True,
        records_more=True,
    ),
)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle in which the host still waits for a device that seems to do nothing."""
    holes = intersect(left, graph_holes(t))
    if lost_share(t) <= MIN_LOST_SHARE:
        return holes
    waits = t.covering(t.blocking_calls)
    gaps = t.gaps
    late = Intervals(np.minimum(gaps.start + AT_ONCE_NS, gaps.end), gaps.end)
    waited = covered(waits, late.start, late.end)
    mine = (waited > 0) & overlaps(time_without_task(t), gaps.start - AT_ONCE_NS, gaps.end)
    waiting = intersect(intersect(left, Intervals(gaps.start[mine], gaps.end[mine])), subtract(waits, EMPTY))
    return union(waiting, holes)


def find(t: Tables) -> list[Finding]:
    """State how many launches have no task, and how much idle may not be real."""
    share, holes = lost_share(t), graph_holes(t)
    texts = []
    if share > MIN_LOST_SHARE:
        texts.append(f"{percent(share)} of the launches in the window have no device task in the file.")
    if len(holes.start):
        texts.append(
            f"{len(holes.start)} holes of {LONG_NS / 1e6:.0f} ms or more next to tasks of CUDA graphs, whose nodes "
            "follow each other within microseconds: nodes are missing."
        )
    return idle_finding(
        t,
        IdleRule(
            META.id,
            "The file lacks device work: part of the idle is not real",
            confidence="medium",
            evidence=texts,
        ),
    )


def time_without_task(t: Tables) -> Intervals:
    """Return the intervals from a launch without a task to the next launch that has one."""
    lost = t.launches_without_task
    if not len(lost):
        return EMPTY
    events = t.trace.events
    launches = device_launches(t)
    with_task = launches[~among(launches, lost)]
    i = np.searchsorted(events.start[with_task], events.start[lost], side="right")
    until = np.append(events.start[with_task], t.steps.window_end)[i]
    return union((events.start[lost], until))
