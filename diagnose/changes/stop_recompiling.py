"""Let one compiled graph serve all sizes.

What it does
    Marks the dimension that changes as dynamic, so that its next value does not fail a guard.

What to watch
    Dynamic kernels can be slower than those for one size; pad to a few sizes where they are. Compiled for all sizes
    with torch 2.13 on a CPU, products and attention took 5 % less to 20 % more, a normalization alone 43 % more: the
    lower end of the saving sets a fifth of the rest of the step aside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import script_of
from diagnose.changes.common.change import Advice, ByHand, Change, Patch, rounding
from diagnose.changes.patches import compiling

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

SLOWER = 0.2  # share of the rest of the step that kernels for all sizes add at most; measured, see above


def _advice(finding: Finding, step_ns: float, program: Program) -> Advice:
    rest_ns = max(step_ns - finding.lost_ns, 0.0)
    return Advice(
        before="model = torch.compile(model)",
        after=f'# TORCH_LOGS="recompiles" python {script_of(program)}   prints which guard fails\n'
        "model = torch.compile(model, dynamic=True)\n"
        "# or name the dimension that changes:\n"
        "torch._dynamo.mark_dynamic(batch, 0)",
        least=max(0.0, 1 - SLOWER * rest_ns / max(finding.lost_ns, 1.0)),
        needs="sizes that differ in known dimensions",
    )


CHANGE = Change(
    id="stop-recompiling",
    title="Mark the changing dimension dynamic so that one graph serves all sizes",
    numerics=rounding("other kernels are generated; compare the loss of the first steps"),
    patch=Patch(compiling.stop_recompiling, compiles=True, group="compile"),
    edit=ByHand("which dimension changes only the script's author knows"),
    advice=_advice,
    remedy="diagnose.kernels.compiling",
)
