"""Compute repeated blocks again in the backward pass.

What it does
    Keeps the inputs of repeated blocks instead of all activations in them, and runs each block once more in backward.

What to watch
    Up to a third more time; `plan_checkpoints` chooses the fewest blocks under a memory target.
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
