"""Compute repeated blocks again in the backward pass.

What it does
    `checkpoint_blocks(model)` keeps only the inputs of repeated blocks. The backward computes their activations again.

What to watch
    A step takes up to a third longer. `plan_checkpoints` finds the fewest blocks for a memory target. Call it before
    DDP, `fully_shard` and `torch.compile`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.common.memory import ACTIVATIONS, forward_again_ns, held
from diagnose.changes.patches import memory

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

SPARED = 0.74  # of the activations, with every block computed again; measured (evaluation/pages/remedies-memory.md)


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    return Proposal(
        before="loss = criterion(model(x), y)",
        after="from diagnose.kernels.checkpointing import checkpoint_blocks, plan_checkpoints\n\n"
        "checkpoint_blocks(model)     # before DDP, fully_shard and compile\n"
        "# or the fewest blocks for a target: plan_checkpoints(model, forward, target_bytes=2 << 30)\n"
        "loss = criterion(model(x), y)",
        needs="up to a third more time; plan_checkpoints chooses the fewest blocks under a memory target",
        frees_bytes=int(held(finding, ACTIVATIONS) * SPARED),
        spares_samples=True,
        costs_ns=forward_again_ns(finding),
    )


CHANGE = Change(
    id="checkpoint-blocks",
    title="Keep fewer activations: compute repeated blocks again in the backward pass",
    numerics=identical(),
    patch=Patch(memory.checkpoint_blocks),
    proposal=_proposal,
    applies=to_training,
    remedy="diagnose.kernels.checkpointing",
)
