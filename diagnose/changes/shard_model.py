"""Shard parameters, gradients and optimizer state over the ranks.

What it does
    Lets each rank hold its share and gather one block at a time (FSDP2). The estimate beside it ranks DDP, ZeRO and
    FSDP by the bytes that each leaves on a rank, before anything is built.

What to watch
    Parameters are gathered in forward and backward: the exchange grows by half. Compare with one process first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Advice, ByHand, Change, rounding
from diagnose.changes.common.memory import num_ranks, share_freed

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    ranks = num_ranks(finding)
    return Advice(
        before="model = DistributedDataParallel(model, device_ids=[local_rank])",
        after="from diagnose.kernels.distributed.fully_sharded import fully_sharded\n"
        "from diagnose.kernels.distributed.memory_estimate import estimate_memory\n"
        "from diagnose.kernels.distributed.mesh import build_mesh\n\n"
        'for strategy in ("ddp", "zero", "fsdp"):   # bytes of a rank, from shapes alone\n'
        f"    print(estimate_memory(model, strategy, num_ranks={ranks}, optimizer=torch.optim.AdamW))\n"
        f'model = fully_sharded(model, build_mesh("cuda", {{"shard": -1}}))   # before the optimizer\n'
        "# afterwards compare_with_one_process (diagnose.kernels.distributed.single_process_parity) checks the numbers",
        needs="repeated blocks, and an optimizer that is made afterwards",
        frees_bytes=share_freed(finding, "model"),
    )


def _applies(program: Program, finding: Finding) -> str:
    if num_ranks(finding) < 2:
        return "a single process has no other rank to share with"
    if program.is_ddp is False:
        return "the model is not wrapped in DistributedDataParallel: it may be sharded already"
    return to_training(program, finding)


CHANGE = Change(
    id="shard-model",
    title="Shard parameters, gradients and optimizer state over the ranks",
    numerics=rounding("gradients are summed in another order; compare_with_one_process checks the first steps"),
    patch=ByHand("the optimizer, checkpoints and clipping of the script have to take sharded parameters"),
    edit=ByHand("the optimizer, checkpoints and clipping of the script have to take sharded parameters"),
    advice=_advice,
    applies=_applies,
    remedy="diagnose.kernels.distributed.fully_sharded",
    modules=(
        "diagnose.kernels.distributed.memory_estimate",
        "diagnose.kernels.distributed.mesh",
    ),
)
