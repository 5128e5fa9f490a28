"""Give slower ranks smaller batches.

What it does
    Measures each rank's speed, deals the samples of a batch out by it, and weighs losses so that gradients stay those
    of the whole batch. The batch over all ranks keeps its size.

What to watch
    Only where one device is slower than the others for good; a rank that is late for another reason keeps that reason.
    The loss must be a mean over the rank's samples, or over the number that ``factor`` is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_data_parallel_training
from diagnose.changes.common.change import Advice, ByHand, Change, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


LOOP = """\
from diagnose.kernels.distributed.uneven import Balance, LossWeights, UnevenBatches

sampler = UnevenBatches(len(dataset), batch_size * dist.get_world_size())   # batch_size: of one rank, as before
loader = DataLoader(dataset, batch_sampler=sampler)   # without DistributedSampler; workers and collate_fn as before
weights, balance = LossWeights(ddp), Balance(ddp, sampler, every=50)
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        factor = weights.factor(len(y))   # before the forward; len(y): what the loss is a mean over
        (criterion(ddp(x), y) * factor).backward()
        optimizer.step()
        optimizer.zero_grad()
        balance.after_step(len(y))"""


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    late = finding.facts.get("late_rank")
    if late is None:
        return None
    return Advice(
        title=f"Give rank {late} smaller batches, by measured speed",
        after=LOOP,
        least=0.0,
        needs="a rank whose device or host is slower for good",
    )


CHANGE = Change(
    id="balance-ranks",
    title="Give slower ranks smaller batches, by measured speed",
    numerics=rounding("gradients equal the whole batch's to 1e-6, of samples that other ranks see"),
    patch=ByHand("how the work is shared among the ranks is the script's own"),
    edit=ByHand("how the work is shared among the ranks is the script's own"),
    advice=_advice,
    applies=to_data_parallel_training,
    remedy="diagnose.kernels.distributed.uneven",
)
