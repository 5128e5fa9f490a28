"""Remove a synchronization that reads nothing.

What it does
    Removes `torch.cuda.synchronize()` from the loop. A stream runs in order, and an operation that reads a value waits
    for it.

What to watch
    To time the GPU, use `torch.cuda.Event(enable_timing=True)`. If another stream or thread relies on the wait, let it
    wait for an event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import waits_for
from diagnose.changes.common.change import Change, EditLoop, Proposal, identical
from diagnose.model.locations import at_line, in_library, own_place

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _applies(_program: Program, finding: Finding) -> bool:
    return not in_library(finding.where) and waits_for(finding) == "synchronize"


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    place = own_place(finding.where)
    at = f" ({at_line(place)})" if place else ""
    return Proposal(
        title=f"Remove the synchronize from the loop{at}",
        least=0.2,
        needs="no clock that is read right after it, and no other thread or device that relies on the wait",
    )


CHANGE = Change(
    id="remove-synchronize",
    title="Remove the synchronize from the loop",
    numerics=identical(),
    edit=EditLoop("without_synchronize", "lines", ()),
    proposal=_proposal,
    applies=_applies,
)
