"""Recompute fewer blocks, or keep the results of matrix products.

What it does
    Takes blocks out of checkpointing, or keeps the products' results, which cost most to compute again.

What to watch
    Memory for the activations that are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Advice, ByHand, Change, identical
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

MIN_REMOVED_BLOCK_SHARE = 0.75  # of those under checkpoint that come out where memory is there; some may have to stay
_OPERATORS = {"convolution": ("convolution",), "product": ("mm", "addmm")}


def _advice(_finding: Finding, _step_ns: float, program: Program) -> Advice:
    heavy = sorted(program.heavy or {"product"})
    kept = ", ".join(f"torch.ops.aten.{name}.default" for what in heavy for name in _OPERATORS[what])
    what = " and ".join({"convolution": "convolutions", "product": "matrix products"}[name] for name in heavy)
    return Advice(
        title=f"Keep the results of {what} in checkpointed blocks",
        before="x = checkpoint(block, x, use_reentrant=False)",
        after="from torch.utils import checkpoint as ckpt\n\n"
        "def keep(ctx, op, *args, **kwargs):\n"
        f"    if op in ({kept},):\n"
        "        return ckpt.CheckpointPolicy.MUST_SAVE\n"
        "    return ckpt.CheckpointPolicy.PREFER_RECOMPUTE\n\n"
        "contexts = lambda: ckpt.create_selective_checkpoint_contexts(keep)\n"
        "x = ckpt.checkpoint(block, x, use_reentrant=False, context_fn=contexts)",
        needs="memory for the activations that are kept",
    )


def _effect(t: Tables, finding: Finding) -> Effect:
    import numpy as np

    from diagnose.analyzers.recompute import second_forwards
    from diagnose.model.intervals import EMPTY, union
    from diagnose.replay.effects import effect_of_tasks

    length = (t.tasks.end - t.tasks.start)[finding.tasks].astype(np.float64)
    host = EMPTY
    for again in second_forwards(t).values():
        host = union(host, again)
    return effect_of_tasks(
        t,
        finding,
        finding.tasks,
        (MIN_REMOVED_BLOCK_SHARE * length, length),
        f"Between {percent(MIN_REMOVED_BLOCK_SHARE, 0)} and all of the second forward goes, with its launches, as "
        "memory allows.",
        host=host,
        host_left=(1 - MIN_REMOVED_BLOCK_SHARE, 0.0),
        pauses_left=(1 - MIN_REMOVED_BLOCK_SHARE, 0.0),
        frees_host=True,
    )


CHANGE = Change(
    id="checkpoint-less",
    title="Keep the results of heavy operators in checkpointed blocks",
    numerics=identical(),
    patch=ByHand("which blocks are computed again is the model's own code"),
    edit=ByHand("how much memory is left for activations only the script's author knows"),
    advice=_advice,
    applies=to_training,
    effect=_effect,
    remedy="diagnose.kernels.checkpointing",
)
