"""Keep the allocator's cached memory from step to step.

What it does
    Removes `torch.cuda.empty_cache()` from the loop. The call waits for the device, and the next step must allocate
    everything again.

What to watch
    Other processes get the unused memory only after this one ends. One call between training and evaluation is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import empties_cache
from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.patches import memory
from diagnose.model.locations import at_line

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _applies(_program: Program, finding: Finding) -> bool:
    return empties_cache(finding) is not None


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    place = empties_cache(finding)
    if place is None:
        return None
    return Proposal(
        title=f"Remove the call of empty_cache from the loop ({at_line(place)})",
        before=place.code or "",
        after="# nothing: blocks that are free are used again by the next step",
        least=0.7,
        needs="no other process that waits for this one's unused memory",
    )


CHANGE = Change(
    id="keep-cached-memory",
    title="Keep the allocator's cached memory from step to step",
    numerics=identical(),
    patch=Patch(memory.keep_cached_memory, needs_gpu=True),
    proposal=_proposal,
    applies=_applies,
)
