"""DistributedDataParallel broadcasts the model's buffers before every forward.

What it looks for
    Broadcasts inside `DistributedDataParallel.forward`, and the copies around them. The recorded data flow shows
    whether any step changes the buffers.

Why it costs
    Rank 0 sends its buffers, such as batch-norm statistics or constant tables, and the forward waits.

What to do
    Pass `broadcast_buffers=False` if no step changes the buffers, or ranks may keep their own statistics. Otherwise
    use `nn.SyncBatchNorm`.

How sure
    High.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.analyzers.common.locate import place_of_call
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.intervals import Intervals, intersect, total
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.collectives import buffer_broadcasts, buffer_updates, constant_buffers, exposed_broadcasts

META = RuleMeta(
    id="buffer-broadcast",
    kind="kernel",
    order=10,
    host_order=45,
    legend=Legend("waiting for rank 0's buffers"),
    changes=("no-buffer-broadcast",),
    computes=False,
    awaits_ranks=True,
)
TITLE = "DistributedDataParallel broadcasts buffers in every forward"
_FORWARD = Where(op="DistributedDataParallel.forward")


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim, without a device, all from gathering the buffers to copying back what came."""
    return intersect(left, buffer_updates(t))


def find(t: Tables, _free: Mask | None = None) -> list[Finding]:
    """Name the exposed time of broadcasts that DDP's forward launches, and the idle time while the host calls them."""
    made = place_of_call(t.capture.known.flags.ddp.made)
    if t.device_id < 0:
        found = idle_finding(t, IdleRule(META.id, TITLE, probe="middle", evidence=_constant(t)))
        return [replace(f, where=tuple(dict.fromkeys((*made, *f.where)))) for f in found]
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
            title=TITLE,
            lost_ns=alone / t.steps.num,
            count=len(rows),
            total_ns=alone,
            median_ns=int(np.median(length)),
            tasks=rows,
            evidence=(
                f"{len(rows) / t.steps.num:.1f} broadcasts a step inside DistributedDataParallel.forward.",
                *host,
                *_constant(t),
            ),
            where=(*made, _FORWARD),
        )
    ]


def _constant(t: Tables) -> list[str]:
    """Return what is said of buffers that no step changes: every rank has them already."""
    buffers = constant_buffers(t)
    if not buffers:
        return []
    size = sum(each.num_bytes for each in buffers)
    named = ", ".join(each.name.removeprefix("module.") for each in buffers[:3])
    more = f" and {len(buffers) - 3} more" if len(buffers) > 3 else ""
    return [f"No step changes the buffers {named}{more} ({size / 1e6:,.1f} MB): every rank holds them already."]
