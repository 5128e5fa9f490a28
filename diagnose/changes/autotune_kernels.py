"""Autotune the kernels.

What it does
    Compiles the model with `max-autotune`, which times generated kernels and libraries for each product.

What to watch
    The search takes minutes at the first step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice | None:
    if finding.facts["attention"] or program.server:  # a server chooses its kernels itself
        return None
    model = "model" if program.is_compiled else "Model().cuda()"
    return Advice(
        before=f"model = torch.compile({model})" if program.is_compiled else f"model = {model}",
        after=f'model = torch.compile({model}, mode="max-autotune")',
        needs="minutes of compiling at the first step",
    )


CHANGE = Change(
    id="autotune-kernels",
    title="Autotune the kernels",
    numerics=rounding("other kernels round differently; compare the loss of the first steps"),
    patch=ByHand("its search takes minutes before the first step, longer than a trial waits for one"),
    edit=ByHand("where the model is made only the script's author knows"),
    advice=_advice,
    remedy="diagnose.kernels.compiling",
)
