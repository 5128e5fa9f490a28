"""Queued kernels follow each other with a short pause.

What it looks for
    Idle of under 10 µs, or 1.5 times the launch latency of the machine where that is longer, before a task that was
    already queued on the same stream.

Why it costs
    The device needs about 1 to 5 µs from one kernel to the next. It adds up only when kernels are tiny.

What to do
    Fewer, larger kernels; CUDA graphs shorten the pause.

How sure
    High: the launch was there before the gap began.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables

META = RuleMeta(
    id="kernel-latency",
    kind="idle",
    order=170,
    legend=Legend("the usual pause between two queued tasks", "#a48ee6"),
    changes=("fuse-kernels",),
    cause="pause",
    also=("capture-step",),
    paced_by="dispatch",
)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim short device parts."""
    gaps = t.gaps
    short = (gaps.end - gaps.queued_at) < gaps.latency_ns
    return intersect(left, gaps.device_part(np.asarray(short)))


def find(t: Tables) -> list[Finding]:
    """Name the idle time between queued kernels."""
    return idle_finding(t, IdleRule(META.id, "Pauses between queued kernels add up"))
