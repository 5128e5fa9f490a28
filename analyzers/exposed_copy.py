"""Copies between CPU and GPU are not overlapped with computation.

What it looks for
    Time in which only such a copy runs. Also idle time while the CPU stages pageable memory or a kernel waits for a
    copy.

Why it costs
    A copy from pageable memory blocks the launching thread and reaches a fraction of the link's rate. On the compute
    stream, even a fast copy delays kernels.

What to do
    Use `pin_memory=True` and `.to(device, non_blocking=True)`. Copy one batch ahead on a side stream.

How sure
    High.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, of_whole
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals, intersect, total, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.names import PAGEABLE, TO_HOST
from diagnose.text.numbers import duration

META = RuleMeta(
    id="exposed-copy",
    kind="idle",
    order=90,
    legend=Legend("a copy held the next task back"),
    changes=("defer-readback", "prefetch-to-device"),
    also=("make-on-device",),
    computes=False,
    cause="copy",
)
ADVICE = (
    Advice(
        id="defer-readback",
        title="Read results back one step later, without waiting",
        numerics=identical(", one step later"),
        before="value = output.cpu()",
        after="""from diagnose.kernels.deferred_metrics import DeferredMetrics

metrics = DeferredMetrics()
metrics.push(step, output=output)   # arrives one step later""",
        watch="A decision in the same step that depends on the value has to stay.",
        when=lambda f, _: f.facts.get("to_host") == f.facts.get("num"),
        least=0.3,
        remedy="diagnose.kernels.deferred_metrics",
    ),
)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle inside the call of the copy that ends the gap, and idle of a task that waits for a copy."""
    gaps, tasks, events = t.gaps, t.tasks, t.trace.events
    if not len(gaps.start) or not len(tasks.start):
        return union()
    to_copy = (gaps.after >= 0) & tasks.is_copy[gaps.after]
    staged = to_copy & (gaps.launch >= 0)
    call = gaps.launch[staged]
    begun = np.maximum(gaps.start[staged], events.start[call])
    waits = gaps.cross_stream & tasks.is_copy[gaps.before] & ~to_copy
    return intersect(left, union((begun, gaps.end[staged]), gaps.device_part(to_copy | waits)))


def find(t: Tables) -> list[Finding]:
    """Name copies that nothing hides, with their kind and rate."""
    title, alone, events = (
        "Copies between host and device are not hidden",
        total(t.occupancy.exposed_copy),
        t.trace.events,
    )
    idle = idle_finding(t, IdleRule(META.id, title))
    lost_ns = alone / t.steps.num + sum(each.lost_ns for each in idle)
    if lost_ns <= 0:
        return []
    base, rows = idle[0] if idle else Finding(META.id, title, lost_ns), t.tasks.row[t.tasks.is_copy]
    names = [t.name(row) for row in rows.tolist()]
    pageable, to_host = (sum(p.search(name) is not None for name in names) for p in (PAGEABLE, TO_HOST))
    sized = rows[events.size[rows] > 0]
    took, moved = int((events.end[sized] - events.start[sized]).sum()), int(events.size[sized].sum())
    rate = f"They move {moved / t.steps.num / 1e6:.2f} MB per step at {moved / max(took, 1):.1f} GB/s."
    return [
        replace(
            base,
            lost_ns=lost_ns,
            count=max(base.count, len(rows)),
            total_ns=base.total_ns + alone,
            evidence=(
                f"{len(rows) / t.steps.num:.1f} copies a step, {pageable} of {len(rows)} pageable, {to_host} to the "
                f"host; {duration(alone / t.steps.num)} {of_whole(t)} only copies.",
                *([rate] if took else []),
                *base.evidence,
            ),
            facts={"pageable": pageable, "to_host": to_host, "num": len(rows)},
        )
    ]
