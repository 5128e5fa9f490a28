"""Compute the cross entropy in one pass over the logits.

What it does
    `cross_entropy(logits, target)` replaces `F.cross_entropy` and needs no second tensor of the logits' size.
    `linear_cross_entropy` includes the last layer and never stores all logits.

What to watch
    It needs Triton, integer classes and no class weights. Including the last layer saves memory rather than time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_a_model_of_the_script, to_training
from diagnose.changes.common.change import Change, Patch, Proposal, rounding
from diagnose.changes.patches import optimizers

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _applies(program: Program, finding: Finding) -> bool:
    fits = to_training(program, finding) and to_a_model_of_the_script(program, finding)
    return bool(program.has_cross_entropy) and fits


CHANGE = Change(
    id="fused-loss",
    title="Compute the cross entropy without a second tensor of the logits' size",
    numerics=rounding("sums are taken in float32 and in another order; compare the loss of the first steps"),
    patch=Patch(optimizers.fused_loss, needs_gpu=True),
    proposal=Proposal(
        before="loss = F.cross_entropy(head(hidden), target)",
        after="from diagnose.kernels.ops.cross_entropy import cross_entropy, linear_cross_entropy\n\n"
        "loss = cross_entropy(head(hidden), target)\n"
        "# the last layer too: the logits never exist as a whole\n"
        "loss = linear_cross_entropy(hidden, head.weight, target, head.bias)",
        needs="classes as integers, no weights of classes; the package triton",
    ),
    applies=_applies,
    remedy="diagnose.kernels.ops.cross_entropy",
)
