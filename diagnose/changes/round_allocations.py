"""Round the sizes of allocations up.

What it does
    Sets `PYTORCH_ALLOC_CONF=roundup_power2_divisions:8`. Similar sizes then share blocks, so a freed one fits the next
    request. Use it if the device has no expandable segments.

What to watch
    Each block takes up to an eighth more memory. Remove `torch.cuda.empty_cache()` from the loop, because it undoes the
    gain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import empties_cache, script_of
from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.common.memory import without_regrowth

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

OPTION = "roundup_power2_divisions:8"


def _proposal(_finding: Finding, _step_ns: float, program: Program) -> Proposal:
    script = script_of(program)
    return Proposal(
        before=f"python {script}            # and torch.cuda.empty_cache() in the loop: remove it",
        after=f"PYTORCH_ALLOC_CONF={OPTION} python {script}\n"
        "# torch before 2.9: PYTORCH_HIP_ALLOC_CONF, on NVIDIA devices PYTORCH_CUDA_ALLOC_CONF",
        needs="memory for blocks that are up to an eighth larger",
    )


def _applies(program: Program, finding: Finding) -> bool:
    has_sizes = program.vendor == "AMD" and program.allocator not in ("uncached", "async")
    return has_sizes and empties_cache(finding) is None


CHANGE = Change(
    id="round-allocations",
    title="Round allocation sizes up, so that freed blocks fit again",
    numerics=identical(),
    patch=Patch(
        environment=dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), OPTION),
        needs_gpu=True,
    ),
    proposal=_proposal,
    applies=_applies,
    effect=without_regrowth,
    remedy="diagnose.kernels.allocator",
)
