"""Let the model's own modules run operators of one pass.

What it does
    Finds modules that write RMSNorm, GELU, SwiGLU or a loss out as several kernels, and replaces their forward by one
    operator that reads and writes memory once, forward and backward.

What to watch
    A module is replaced only where random inputs gave the operator's results; what was left is listed with its reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_a_model_of_the_script
from diagnose.changes.common.change import Change, Patch, Proposal, rounding
from diagnose.changes.patches import optimizers

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _applies(program: Program, finding: Finding) -> bool:
    return finding.facts.get("has_device") is not False and to_a_model_of_the_script(program, finding)


CHANGE = Change(
    id="patch-operators",
    title="Replace modules that write a formula out by one operator each",
    numerics=rounding("the operators add in another order; compare the loss of the first steps"),
    patch=Patch(optimizers.patch_operators, needs_gpu=True, group="compile"),
    proposal=Proposal(
        before="model = Model().cuda()",
        after="from diagnose.kernels.patching import patch\n\n"
        "model = Model().cuda()\n"
        "print(patch(model))   # before it is compiled or wrapped; names the modules and their operators",
        least=0.0,
        needs="a model that is not compiled, with modules of RMSNorm, GELU or SwiGLU of its own; the package triton",
    ),
    applies=_applies,
    remedy="diagnose.kernels.patching",
    modules=(  # of the modules that it recognises
        "diagnose.kernels.ops.cross_entropy",
        "diagnose.kernels.ops.gelu",
        "diagnose.kernels.ops.norms",
        "diagnose.kernels.ops.swiglu",
    ),
)
