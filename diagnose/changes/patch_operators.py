"""Replace modules by operators that read memory once.

What it does
    `patch(model)` finds modules that compute RMSNorm, GELU, SwiGLU or a loss in several kernels. One operator replaces
    each.

What to watch
    It needs Triton. Call it before the model is compiled or wrapped. A module stays if random inputs give other
    results; the printed list names the reason.
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
        needs="a model that is not compiled, with its own modules of RMSNorm, GELU or SwiGLU; the package triton",
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
