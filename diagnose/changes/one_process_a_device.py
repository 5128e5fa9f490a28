"""Run one process for each device.

What it does
    Puts DistributedDataParallel in the place of DataParallel, which gathers outputs and gradients on one device.

What to watch
    Each process has its own sampler and its own batch-norm statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, other_training, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(_finding: Finding, _step_ns: float, program: Program) -> Advice:
    before = "model = nn.DataParallel(model)"
    if program.trains is False:
        return Advice(
            title="Run one process a device, each with its share of the inputs",
            before=before,
            after="# torchrun --nproc-per-node=gpu infer.py\nmodel = model.to(local_rank)",
            least=0.3,
            numerics=rounding("kernels for another batch size round differently; compare the outputs"),
        )
    return Advice(
        before=before,
        after="# torchrun --nproc-per-node=gpu train.py\n"
        "model = DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])",
        least=0.3,
    )


CHANGE = Change(
    id="one-process-a-device",
    title="Run one process a device with DistributedDataParallel",
    numerics=other_training("batch norm sees each device's share, and samplers are split"),
    patch=ByHand("the script has to be started once for each device, and to take its share of the samples"),
    edit=ByHand("how the script takes its share of the samples only its author knows"),
    advice=_advice,
    remedy="diagnose.kernels.distributed.launch",
)
