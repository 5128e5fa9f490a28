"""Let what makes a tensor write the type that it is used in.

What it does
    Takes the cast behind a kernel away: the kernel writes the other type itself, by an argument of its function or of
    the library that calls it, or as the last line of a kernel of one's own.

What to watch
    A value is rounded once instead of twice. A library's kernel that has no such output keeps the cast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

_TYPES = {"half": "float16", "double": "float64", "float": "float32"}


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    to = str(finding.facts.get("cast_to", ""))
    if not to:
        return None
    dtype = f"torch.{_TYPES.get(to, to)}"
    return Advice(
        before=f"w = dequantize(packed)   # writes another type\ny = x @ w.to({dtype})",
        after=f"w = dequantize(packed, dtype={dtype})   # a library: its compute dtype\ny = x @ w",
        least=0.1,
        most=1.0,
        needs="a producer that can write the type; weights of 4 bits, say, that were packed for it",
    )


CHANGE = Change(
    id="emit-type",
    title="Write the tensors in the type that they are used in",
    numerics=rounding("a value is rounded once instead of twice"),
    patch=ByHand("which argument or setting holds the type only the script's author knows"),
    edit=ByHand("which argument or setting holds the type only the script's author knows"),
    advice=_advice,
    without_remedy="an argument of the function that makes the tensor",
)
