"""Flush subnormal numbers to zero on the CPU.

What it does
    Sets a mode of the CPU's arithmetic, in which a number below 1.2e-38 is 0 as an input and as a result.

What to watch
    The mode is a thread's own, and threads inherit it: set it before the first operator, and in what starts processes
    or threads of its own. Not all CPUs have it; the call returns False then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_kind
from diagnose.changes.common.change import AddStatement, Change, Patch, Proposal, rounding
from diagnose.changes.patches import precision

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

MIN_FLUSHED_SHARE = 0.3  # of what operators take longer: a part may be due to their layout
STATEMENT = "torch.set_flush_denormal(True)"


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    tensor = finding.facts.get("tensor", "tensor")
    return Proposal(
        after=f"{STATEMENT}   # before the first operator: threads that torch starts inherit it\n"
        f"# or where the numbers come from, the {tensor}: 0 where it no longer counts\n"
        "mask = torch.where(mask < 1e-30, 0.0, mask)",
        least=MIN_FLUSHED_SHARE,
        needs="an x86 CPU with SSE3, or an ARM CPU",
    )


CHANGE = Change(
    id="flush-subnormals",
    title="Flush subnormal numbers to zero on the CPU",
    numerics=rounding("numbers below 1.2e-38 become 0"),
    applies=to_kind("subnormal"),
    proposal=_proposal,
    patch=Patch(precision.flush_subnormals),
    edit=AddStatement(STATEMENT, ("set_flush_denormal",)),
)
