"""DistributedDataParallel broadcasts the model's buffers before every forward.

What it looks for
    Broadcasts inside `DistributedDataParallel.forward`, and the copies around them.

Why it costs
    Rank 0 sends its buffers, such as batch-norm statistics, and the forward waits.

What to do
    Pass `broadcast_buffers=False` if ranks may keep their own statistics. Otherwise use `nn.SyncBatchNorm`.

How sure
    High.
"""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.intervals import intersect, total
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.collectives import buffer_broadcasts, buffer_updates, exposed_broadcasts

META = RuleMeta(
    id="buffer-broadcast",
    kind="kernel",
    order=10,
    changes=("no-buffer-broadcast",),
    computes=False,
)


def find(t: Tables, _free: Mask) -> list[Finding]:
    """Name the exposed time of broadcasts that DDP's forward launches, and the idle time while the host calls them."""
    rows = buffer_broadcasts(t)
    if not len(rows):
        return []
    idle = total(intersect(t.gaps.host_part(), buffer_updates(t)))
    alone = total(exposed_broadcasts(t)) + idle
    if alone / t.steps.num < 0.002 * t.steps.step_ns:
        return []
    calls = total(buffer_updates(t)) / t.steps.num
    host = (f"The host takes {calls / 1e6:.2f} ms per step to send buffers and to copy them back.",) if idle else ()
    length = (t.tasks.end - t.tasks.start)[rows]
    return [
        Finding(
            rule=META.id,
            title="DistributedDataParallel broadcasts buffers in every forward",
            lost_ns=alone / t.steps.num,
            count=len(rows),
            total_ns=alone,
            median_ns=int(np.median(length)),
            tasks=rows,
            evidence=(
                f"{len(rows) / t.steps.num:.1f} broadcasts a step inside DistributedDataParallel.forward.",
                *host,
            ),
            where=(Where(op="DistributedDataParallel.forward"),),
        )
    ]
