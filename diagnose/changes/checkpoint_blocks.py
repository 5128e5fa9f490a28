"""Compute repeated blocks again in the backward pass.

What it does
    Keeps the inputs of repeated blocks instead of all activations in them, and runs each block once more in backward.

What to watch
    Up to a third more time; `plan_checkpoints` chooses the fewest blocks under a memory target.
"""

from __future__ import annotations

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Advice, ByHand, Change, Patch, identical
from diagnose.changes.patches import memory

CHANGE = Change(
    id="checkpoint-blocks",
    title="Keep fewer activations: compute repeated blocks again in the backward pass",
    numerics=identical(),
    patch=Patch(memory.checkpoint_blocks),
    edit=ByHand("where the model is made only the script's author knows"),
    advice=Advice(
        before="loss = criterion(model(x), y)",
        after="from diagnose.kernels import checkpoint_blocks\n\n"
        "checkpoint_blocks(model)     # before DDP, fully_shard and compile\n"
        "loss = criterion(model(x), y)",
        needs="up to a third more time; plan_checkpoints chooses the fewest blocks under a memory target",
    ),
    applies=to_training,
    remedy="diagnose.kernels.checkpointing",
)
