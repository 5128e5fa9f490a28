"""Send gradients in 8 bits.

What it does
    `install(ddp, "int8")` adds a DDP hook that sends a quarter of the bytes. Rounding errors are added to the next
    step's gradients.

What to watch
    It costs about six passes over the gradients. Beyond eight ranks nothing is gained. Save `hook.state_dict()` on
    every rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Patch, Proposal, reduced
from diagnose.changes.common.gradients import is_a_reduction, is_costly, up_to_ranks
from diagnose.changes.patches import distributed

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _proposal(finding: Finding, step_ns: float, _program: Program) -> Proposal | None:
    if not is_a_reduction(finding) or not is_costly(finding, step_ns):
        return None
    return Proposal(
        after="from diagnose.kernels.distributed.comm_hooks import install\n\n"
        'hook = install(ddp, "int8")   # before the first backward; save hook.state_dict() on every rank',
        least=0.0,
        most=0.7,
        needs="DistributedDataParallel over a slow link",
    )


CHANGE = Change(
    id="eight-bit-gradients",
    title="Send gradients in 8 bits",
    numerics=reduced("8-bit gradients round; compare the loss of the first thousand steps"),
    patch=Patch(distributed.eight_bit_gradients, group="hook"),
    proposal=_proposal,
    applies=up_to_ranks(8),  # each receives the bytes of all others
    remedy="diagnose.kernels.distributed.comm_hooks",
)
