"""Exchange parameters every few steps instead of gradients in each.

What it does
    Lets each rank train by itself after a while, and averages the parameters every few steps (post-local SGD).

What to watch
    It trains differently: the loss was 3 % above that of DDP after a short training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_data_parallel_training
from diagnose.changes.common.change import Advice, ByHand, Change, other_training
from diagnose.changes.common.gradients import is_a_reduction, is_costly

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, step_ns: float, _program: Program) -> Advice | None:
    if not is_a_reduction(finding) or not is_costly(finding, step_ns):
        return None
    return Advice(
        after="from diagnose.kernels.distributed.local_sgd import LocalSGD\n\n"
        "local = LocalSGD(ddp, optimizer, start=1000, every=8)\n"
        "loss.backward()\nlocal.step()   # in place of optimizer.step(); local.average() at the end",
        least=0.0,
        most=0.8,
        needs="links so slow that fewer exchanges outweigh another course of training",
    )


CHANGE = Change(
    id="local-sgd",
    title="Exchange parameters every few steps instead of gradients in each",
    numerics=other_training("ranks train apart between two exchanges"),
    patch=ByHand("it trains differently, which is the user's to decide"),
    edit=ByHand("it trains differently, which is the user's to decide"),
    advice=_advice,
    applies=to_data_parallel_training,
    remedy="diagnose.kernels.distributed.local_sgd",
)
