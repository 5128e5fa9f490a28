"""Every step allocates memory from the driver.

What it looks for
    Gaps that `cudaMalloc`, `cudaFree` or similar calls fill by at least 30%, in half of the steps or more.

Why it costs
    These calls take from 0.1 ms to seconds, and `cudaFree` waits for the GPU. The cache should avoid them, except near
    the memory limit or with changing sizes.

What to do
    Remove `torch.cuda.empty_cache()` from the loop. Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, or round
    sizes.

How sure
    High for the time. Medium for the reason without memory events.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, calls_inside, idle_finding, idle_gaps_of, in_steps
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals, covered, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.calls import allocations

META = RuleMeta(
    id="allocator-stall",
    kind="idle",
    order=60,
    legend=Legend("the allocator allocated from the driver"),
    changes=("cache-device-memory", "keep-cached-memory", "expandable-segments", "round-allocations"),
    one_off=True,
    cause="allocation",
)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim what allocation calls cover of gaps that they explain."""
    rows = allocations(t)
    if not len(rows):
        return EMPTY
    calls, gaps = t.covering(rows), t.gaps
    share = covered(calls, gaps.start, gaps.end) / np.maximum(gaps.end - gaps.start, 1)
    return intersect(intersect(left, calls), gaps.host_part(share >= 0.3))


def find(t: Tables) -> list[Finding]:
    """Name the idle time of driver allocations with the calls that took it."""
    o = idle_gaps_of(t, META.id)
    title = f"The allocator requests memory from the driver {in_steps(t, o.start, o.lost)}"
    return idle_finding(t, IdleRule(META.id, title, evidence=calls_inside(t, META.id)))
