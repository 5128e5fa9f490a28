"""Fuse small kernels by compiling the model.

What it does
    `torch.compile(model)` turns chains of small kernels into one. The pauses between them disappear.

What to watch
    Compiling takes tens of seconds, and again for each new shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import COMPILATION, compiled_before_capture, to_a_model_of_the_script
from diagnose.changes.common.change import Change, Patch, Proposal, rounding
from diagnose.changes.patches import compiling

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

MIN_ONE_PASS_SHARE, MAX_SAVED_SHARE = 0.2, 0.7


def _proposal(finding: Finding, _step_ns: float, program: Program) -> Proposal:
    if finding.facts.get("in_graph"):
        return compiled_before_capture(
            program,
            title="Compile what the CUDA graph captures, so that small nodes become one",
            least=MIN_ONE_PASS_SHARE,
            most=MAX_SAVED_SHARE,
        )
    return Proposal(
        before="model = Model().cuda()",
        after="model = torch.compile(Model().cuda())",
        least=MIN_ONE_PASS_SHARE,
        most=MAX_SAVED_SHARE,
        needs=COMPILATION,
    )


CHANGE = Change(
    id="fuse-kernels",
    title="Fuse small kernels by compiling the model",
    numerics=rounding("fused kernels round differently; compare the loss of the first steps"),
    patch=Patch(compiling.compile_model, needs_gpu=True, compiles=True, group="compile"),
    proposal=_proposal,
    applies=to_a_model_of_the_script,
    remedy="diagnose.kernels.compiling",
)
