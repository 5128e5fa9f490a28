"""Recompute fewer blocks, or keep the results of matrix products.

What it does
    Takes blocks out of checkpointing, or keeps the products' results, which cost most to compute again.

What to watch
    Memory for the activations that are kept.
"""

from __future__ import annotations

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Advice, ByHand, Change, identical

CHANGE = Change(
    id="checkpoint-less",
    title="Run fewer blocks under checkpoint, or keep the results of matrix products",
    numerics=identical(),
    patch=ByHand("which blocks are computed again is the model's own code"),
    edit=ByHand("how much memory is left for activations only the script's author knows"),
    advice=Advice(
        before="x = checkpoint(block, x, use_reentrant=False)",
        after="from functools import partial\n\n"
        "from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts\n\n"
        "def keep_products(ctx, op, *args, **kwargs):\n"
        "    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)\n"
        "    keep = op in products\n"
        "    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE\n\n"
        "contexts = partial(create_selective_checkpoint_contexts, keep_products)\n"
        "x = checkpoint(block, x, use_reentrant=False, context_fn=contexts)",
        needs="memory for the activations that are kept",
    ),
    applies=to_training,
    remedy="diagnose.kernels.checkpointing",
)
