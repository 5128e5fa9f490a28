"""Let one compiled graph serve all sizes.

What it does
    Marks the dimension that changes as dynamic, so that its next value does not fail a guard.

What to watch
    Dynamic kernels can be slower than those for one size; pad to a few sizes where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import script_of
from diagnose.changes.common.change import Advice, ByHand, Change, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(_finding: Finding, _step_ns: float, program: Program) -> Advice:
    return Advice(
        before="model = torch.compile(model)",
        after=f'# TORCH_LOGS="recompiles" python {script_of(program)}   prints which guard fails\n'
        "model = torch.compile(model, dynamic=True)\n"
        "# or name the dimension that changes:\n"
        "torch._dynamo.mark_dynamic(batch, 0)",
        least=0.9,
        needs="sizes that differ in known dimensions",
    )


CHANGE = Change(
    id="stop-recompiling",
    title="Mark the changing dimension dynamic so that one graph serves all sizes",
    numerics=rounding("other kernels are generated; compare the loss of the first steps"),
    patch=ByHand("the shapes that the script feeds to the compiled model are its own"),
    edit=ByHand("which dimension changes only the script's author knows"),
    advice=_advice,
    remedy="diagnose.kernels.compiling",
)
