"""Keep freed memory in the C library's heap.

What it does
    Sets `MALLOC_MMAP_THRESHOLD_` and `MALLOC_TRIM_THRESHOLD_` before Python starts. glibc then reuses freed blocks of
    up to 32 MB instead of returning them to the system.

What to watch
    The process keeps the memory of its largest step. The settings have no effect with jemalloc, tcmalloc, musl, or
    outside of Linux.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import script_of
from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.patches import memory

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

SETTINGS = {"MALLOC_MMAP_THRESHOLD_": memory.MMAP_THRESHOLD, "MALLOC_TRIM_THRESHOLD_": memory.TRIM_THRESHOLD}
# Of what faults take: blocks above 32 MB, and what is used for the first time, keep theirs. Memory that is used again
# lies in the caches as well: of three scripts that gained, one gained 1.1 times as much.
LEAST, MOST = 0.3, 1.2


def _proposal(_finding: Finding, _step_ns: float, program: Program) -> Proposal:
    given = " ".join(f"{name}={value}" for name, value in SETTINGS.items())
    return Proposal(
        before=f"python {script_of(program)}",
        after=f"{given} python {script_of(program)}",
        least=LEAST,
        most=MOST,
        needs="Linux with glibc; the memory of the largest step stays the process's own",
    )


CHANGE = Change(
    id="keep-heap",
    title="Keep freed memory in the C library's heap",
    numerics=identical(),
    patch=Patch(memory.keep_heap),
    proposal=_proposal,
)
