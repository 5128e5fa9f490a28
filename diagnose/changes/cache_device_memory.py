"""Switch the caching allocator on again.

What it does
    Takes PYTORCH_NO_CUDA_MEMORY_CACHING out of the environment: freed blocks are kept and handed out again, without a
    call of the driver.

What to watch
    The variable is meant for finding faults of memory, and a debugging session may have left it behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import script_of
from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.common.memory import without_regrowth

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _proposal(_finding: Finding, _step_ns: float, program: Program) -> Proposal:
    return Proposal(
        before=f"PYTORCH_NO_CUDA_MEMORY_CACHING=1 python {script_of(program)}",
        after=f"env -u PYTORCH_NO_CUDA_MEMORY_CACHING -u PYTORCH_NO_HIP_MEMORY_CACHING python {script_of(program)}",
        least=0.5,
    )


def _applies(program: Program, _finding: Finding) -> bool:
    return program.allocator == "uncached"


CHANGE = Change(
    id="cache-device-memory",
    title="Keep freed memory in the caching allocator",
    numerics=identical(),
    patch=Patch(
        environment=dict.fromkeys(("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")), needs_gpu=True
    ),
    proposal=_proposal,
    applies=_applies,
    effect=without_regrowth,
)
