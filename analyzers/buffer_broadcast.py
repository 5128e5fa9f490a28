"""DistributedDataParallel broadcasts the model's buffers before every forward.

What it looks for
    Broadcasts on the device inside `DistributedDataParallel.forward`, and what the host does for them there: buffers go
    into one tensor before it, and by a copy each out of it again behind it.

Why it costs
    Rank 0 sends its buffers (batch-norm statistics) to all others in each step, and the forward waits for them. With
    many small buffers the copies cost more than the transfer: the host launches one for each while the device idles.

What to do
    `broadcast_buffers=False` where ranks may keep their own statistics, or SyncBatchNorm where they must agree.

How sure
    High: the broadcast is launched inside DDP's forward.
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
    host = (f"The host takes {calls / 1e6:.2f} ms a step to send buffers and to copy them back.",) if idle else ()
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
