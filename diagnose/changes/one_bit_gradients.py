"""Send the signs of gradients.

What it does
    Installs a hook on DistributedDataParallel that sends one bit a gradient, and one magnitude for each block of 1024.
    What the signs lack is added to the next step's gradients.

What to watch
    Training takes another course: compare the loss of the first thousand steps. About six passes over the gradients,
    and every rank receives from every other: beyond 56 ranks nothing is gained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, Patch, reduced
from diagnose.changes.common.gradients import is_a_reduction, is_dominant, to_large_gradients
from diagnose.changes.common.memory import num_ranks
from diagnose.changes.patches import distributed

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

MAX_RANKS = 56  # each receives the bytes of all others


def _applies(program: Program, finding: Finding) -> str:
    if num_ranks(finding) > MAX_RANKS:
        return f"each of {num_ranks(finding)} ranks would receive the bytes of all others"
    return to_large_gradients(program, finding)


def _advice(finding: Finding, step_ns: float, _program: Program) -> Advice | None:
    if not is_a_reduction(finding) or not is_dominant(finding, step_ns):
        return None
    return Advice(
        after="from diagnose.kernels.distributed.comm_hooks import install\n\n"
        'hook = install(ddp, "one_bit", warm_up=1000)   # before the first backward\n'
        'checkpoint = {"model": model.state_dict(), "hook": hook.state_dict()}   # on every rank: errors differ',
        least=0.0,
        most=0.8,
        needs="DistributedDataParallel over a slow link; memory for the errors, as large as the gradients",
    )


CHANGE = Change(
    id="one-bit-gradients",
    title="Send the signs of gradients (one bit each, with error feedback)",
    numerics=reduced("signs replace gradients; compare the loss of the first thousand steps"),
    patch=Patch(distributed.one_bit_gradients, group="hook"),
    edit=ByHand("which variable holds the DistributedDataParallel only the script's author knows"),
    advice=_advice,
    applies=_applies,
    remedy="diagnose.kernels.distributed.comm_hooks",
)
