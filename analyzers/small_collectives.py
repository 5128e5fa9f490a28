"""Many collectives are too small to fill the link.

What it looks for
    More than 10 collectives of less than 100 µs per step that are not overlapped. Threshold: 1% of the step.

Why it costs
    A collective has a latency of 10–50 µs, however few bytes it carries.

What to do
    Reduce in buckets, as DistributedDataParallel does, or wrap whole blocks in FSDP. Or put the tensors into one flat
    buffer before the call.

How sure
    High for the time.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.kernel_findings import top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import total
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.collectives import exposed_small
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import duration, plural

META = RuleMeta(
    id="small-collectives",
    kind="kernel",
    order=20,
    changes=("bucket-gradients",),
    computes=False,
    also=("tune-buckets",),
)


def find(t: Tables, _free: Mask) -> list[Finding]:
    """Name the time of collectives that are too small."""
    tasks = t.small_collectives
    alone = total(exposed_small(t))
    if not len(tasks) or alone < THRESHOLDS.naming_share * t.steps.num * t.steps.step_ns:
        return []
    length = (t.tasks.end - t.tasks.start)[tasks]
    return [
        Finding(
            rule=META.id,
            title="Many collectives are too small to fill the link",
            lost_ns=alone / t.steps.num,
            count=len(tasks),
            total_ns=alone,
            median_ns=int(np.median(length)),
            tasks=tasks,
            evidence=(
                f"{plural(len(tasks) / t.steps.num, 'collective')} of {np.median(length) / 1e3:.0f} µs at the median a "
                f"step; nothing hides {duration(alone / t.steps.num)} of them.",
                *top_kernels(t, tasks),
            ),
            facts={"one_by_one": True, "has_device": True},
        )
    ]
