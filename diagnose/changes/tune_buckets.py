"""Measure which size of gradient buckets makes the step shortest.

What it does
    Runs real steps with buckets of several sizes on all ranks, and keeps the fastest.

What to watch
    Some hundred steps at the start, after which model and optimizer are as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_data_parallel_training
from diagnose.changes.common.change import Advice, ByHand, Change, rounding
from diagnose.changes.common.gradients import is_a_reduction

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


_STEP = """def make_step(ddp):
    def step(batch):   # the step of your own, with the model that is being tried
        x, y = batch
        criterion(ddp(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return step"""


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    if not is_a_reduction(finding):
        return None
    return Advice(
        after="from diagnose.kernels.distributed.bucket_tuning import tune_buckets\n\n"
        f"{_STEP}\n\nchoice = tune_buckets(model, make_step, loader, state=[optimizer])   # on every rank\n"
        "print(choice)",
        least=0.0,
        needs="the step as a function that is made from a DistributedDataParallel",
    )


CHANGE = Change(
    id="tune-buckets",
    title="Measure which size of gradient buckets makes the step shortest",
    numerics=rounding("buckets of another size may be summed in another order; compare the loss of the first steps"),
    patch=ByHand("it times the script's own step, which has to be a function"),
    edit=ByHand("which lines are one step only the script's author knows"),
    advice=_advice,
    applies=to_data_parallel_training,
    remedy="diagnose.kernels.distributed.bucket_tuning",
)
