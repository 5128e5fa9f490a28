"""Let the ranks exchange tensors of the device over a backend that runs there.

What it does
    NCCL reduces on the devices and only queues the work; gloo copies each tensor to the host, reduces it there, and
    the step waits.

What to watch
    Ranks that share a device cannot use NCCL: each needs one of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    if not finding.facts.get("of_host_backend"):
        return None
    return Advice(
        before='dist.init_process_group("gloo")',
        after='dist.init_process_group("nccl")   # reduces on the devices; gloo copies every gradient to the host',
        least=0.4,
        needs="a device for each rank",
    )


CHANGE = Change(
    id="device-backend",
    title="Use the NCCL backend instead of gloo",
    numerics=rounding("sums are taken in another order"),
    patch=ByHand("it needs a device for each rank, and the launcher's setting"),
    edit=ByHand("which backend the ranks can use depends on the machine"),
    advice=_advice,
    without_remedy="a setting of torch.distributed",
)
