"""Switch the caching allocator on again.

What it does
    Removes `PYTORCH_NO_CUDA_MEMORY_CACHING` from the environment. Freed memory is then reused without a driver call.

What to watch
    Set the variable only while you debug memory errors.
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
