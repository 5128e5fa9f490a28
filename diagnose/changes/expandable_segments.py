"""Let the allocator's segments grow in place.

What it does
    Sets `PYTORCH_ALLOC_CONF=expandable_segments:True` (before torch 2.9: `PYTORCH_CUDA_ALLOC_CONF`). A block that does
    not fit then needs no `cudaFree` first.

What to watch
    It needs Linux and a driver with virtual memory management. Remove `torch.cuda.empty_cache()` from the loop, because
    it undoes the gain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import empties_cache, script_of
from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.common.memory import without_regrowth

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _proposal(_finding: Finding, _step_ns: float, program: Program) -> Proposal:
    script = script_of(program)
    return Proposal(
        before=f"python {script}            # and torch.cuda.empty_cache() in the loop: remove it",
        after=f"PYTORCH_ALLOC_CONF=expandable_segments:True python {script}\n"
        "# torch before 2.9: PYTORCH_CUDA_ALLOC_CONF",
        needs="Linux and a driver with virtual memory management",
    )


def _applies(program: Program, finding: Finding) -> bool:
    has_segments = program.vendor != "AMD" and program.allocator not in ("uncached", "async")
    return has_segments and empties_cache(finding) is None


CHANGE = Change(
    id="expandable-segments",
    title="Use expandable segments of the allocator instead of freeing and allocating them again",
    numerics=identical(),
    patch=Patch(
        environment=dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "expandable_segments:True"),
        needs_gpu=True,
    ),
    proposal=_proposal,
    applies=_applies,
    effect=without_regrowth,
    remedy="diagnose.kernels.allocator",
)
