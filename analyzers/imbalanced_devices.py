"""One process drives several GPUs, and they are not equally busy.

What it looks for
    A GPU that computes less than 80% as long as the busiest one. Collectives do not count.

Why it costs
    The step ends with the busiest GPU. DataParallel gathers outputs and losses on the first GPU.

What to do
    Run one process per GPU with DistributedDataParallel. If you place layers by hand, move the boundary.

How sure
    High for the busy times.
"""

from __future__ import annotations

from dataclasses import replace

from diagnose.analyzers.common.advice import Advice, other_training, rounding
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import among, distinct, intersect, span, total, union
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.names import COLLECTIVE, matching, rows_of

META = RuleMeta(
    id="imbalanced-devices",
    kind="state",
    order=20,
    changes=("one-process-a-device",),
)
_PROCESSES = Advice(
    id="one-process-a-device",
    title="Run one process a device with DistributedDataParallel",
    numerics=other_training("batch norm sees each device's share, and samplers are split"),
    before="model = nn.DataParallel(model)",
    after="# torchrun --nproc-per-node=gpu train.py\n"
    "model = DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])",
    when=lambda _, p: p.trains is not False,
    least=0.3,
    remedy="diagnose.kernels.distributed.launch",
)
ADVICE = (
    _PROCESSES,
    replace(
        _PROCESSES,
        title="Run one process a device, each with its share of the inputs",
        numerics=rounding("kernels for another batch size round differently; compare the outputs"),
        after="# torchrun --nproc-per-node=gpu infer.py\nmodel = model.to(local_rank)",
        when=lambda _, p: p.trains is False,
    ),
)


def find(t: Tables) -> list[Finding]:
    """Name the time by which the busiest device works longer than the mean."""
    rows = rows_of(t.trace, Kind.KERNEL)
    rows = rows[~among(rows, matching(t.trace, (Kind.KERNEL,), COLLECTIVE))]
    events = t.trace.events
    start, end = t.steps.window
    busy = {}
    for device in distinct(events.device[rows]).tolist():
        mine = rows[events.device[rows] == device]
        busy[device] = total(intersect(union((events.start[mine], events.end[mine])), span(start, end)))
    most, least = max(busy.values(), default=0), min(busy.values(), default=0)
    if most <= 0.1 * (end - start) or least >= 0.8 * most:
        return []
    mean = sum(busy.values()) / len(busy)
    listed = ", ".join(f"GPU {device} {ns / t.steps.num / 1e6:.2f}" for device, ns in sorted(busy.items()))
    return [
        Finding(
            rule=META.id,
            title="The devices of this process are not equally busy",
            lost_ns=(most - mean) / t.steps.num,
            count=len(busy),
            total_ns=int(most - mean),
            evidence=(f"Busy with kernels, ms a step: {listed}.",),
        )
    ]
