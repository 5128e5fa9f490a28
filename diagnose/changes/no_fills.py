"""Leave out fills of buffers that are written anyway.

What it does
    Calls `zero_grad(set_to_none=True)`, and makes buffers with `torch.empty` if all of them is written.

What to watch
    Code that reads a gradient before the first backward gets `None`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, EditLoop, Patch, Proposal, identical
from diagnose.changes.patches import memory

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _proposal(_finding: Finding, _step_ns: float, program: Program) -> Proposal:
    before, after = (
        "out = torch.zeros(shape, device=device)",
        "out = torch.empty(shape, device=device)  # all is written",
    )
    if program.trains is False:
        return Proposal(title="Make buffers that are written anyway with empty", before=before, after=after)
    return Proposal(
        before=f"optimizer.zero_grad(set_to_none=False)\n{before}",
        after=f"optimizer.zero_grad(set_to_none=True)\n{after}",
    )


CHANGE = Change(
    id="no-fills",
    title="Set gradients to None, and allocate buffers that are overwritten with empty",
    numerics=identical("if all of the buffer is written"),
    patch=Patch(memory.no_fills),
    edit=EditLoop("with_gradients_set_to_none", "device", "cpu"),
    proposal=_proposal,
)
