"""Let each call do more.

What it does
    Runs many small problems in one batched call, or takes a larger batch, so that a kernel's grid fills the device.

What to watch
    A batched call needs problems of one size; a larger batch trains differently.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, other_training, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

_PRODUCT = r"(^aten::|: )(mm|addmm|bmm|baddbmm|matmul|linear|mv|einsum)|(Mm|Addmm|Bmm|Linear)Backward"


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice:
    numerics = (
        rounding("kernels for another batch size round differently; compare the outputs")
        if program.trains is False
        else None
    )
    if any(w.op and re.search(_PRODUCT, w.op) for w in finding.where[:1]):
        return Advice(
            before="outputs = [x @ w for x, w in zip(inputs, weights)]",
            after="outputs = torch.bmm(torch.stack(inputs), torch.stack(weights)).unbind()",
            needs="problems of one size, or memory for a larger batch",
            numerics=numerics,
        )
    size = program.batch_size
    now, larger = (f"{size} samples", f"{2 * size}") if size else ("the samples of one call", "twice as many")
    return Advice(
        title="Do more in each call: a larger batch",
        before=f"y = model(x)   # {now}",
        after=f"y = model(x)   # {larger}: the operator's blocks grow with the batch",
        least=0.0,
        needs="memory for a larger batch",
        numerics=numerics,
    )


CHANGE = Change(
    id="fill-the-device",
    title="Do more in each call: a larger batch, or many small problems in one batched call",
    numerics=other_training("a batched kernel rounds differently, a larger batch trains differently"),
    patch=ByHand("which calls can be one only the script's author knows"),
    edit=ByHand("which calls can be one only the script's author knows"),
    advice=_advice,
    without_remedy="one call in place of another of torch",
)
