"""Round the sizes of allocations up.

What it does
    Sets an option of torch's caching allocator, which then rounds each size up to a few divisions of a power of two:
    sizes that differ a little take the same blocks, so that a freed one fits the next request. It stands in for
    expandable segments where the device has none.

What to watch
    Up to an eighth more memory for each block. `torch.cuda.empty_cache()` in the loop undoes it; take it out. Calls
    that take more from the driver than was given back stay at least, since memory still grows there.
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
