"""Gradients are reduced over ranks several times, although only their sum is read.

What it looks for
    Reductions of equal tensors in one step whose results are only scaled and added up: nothing reads one before the
    last.

Why it costs
    Gradient accumulation needs one reduction per optimizer step. With one for each micro-batch, the ranks also wait for
    each other at each of them.

What to do
    Run all micro-batches but the last under `no_sync()`, or with `set_requires_gradient_sync(False)` of FSDP. Call
    a reduction of your own after the loop.

How sure
    High: the recorded data flow shows what reads each result, and the saving is a replay of all ranks. Needs
    `diagnose trace` of all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.analyzers.common.advice import Advice, rounding
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables.thresholds import THRESHOLDS

if TYPE_CHECKING:
    from diagnose.ranks.comparison import Comparison

META = RuleMeta(
    id="reduced-again",
    kind="rank",
    order=4,
    changes=("reduce-last", "reduce-sum"),
    needs=("all ranks", "data flow"),
)
ADVICE = (
    Advice(
        id="reduce-last",
        title="Reduce gradients only in the last of {num} micro-batches{there}",
        numerics=rounding("the sum is reduced once"),
        before="for part in batch.chunk(4):\n    ddp(part).mean().backward()",
        after="""from contextlib import nullcontext

parts = batch.chunk(4)
for i, part in enumerate(parts):
    is_last = i == len(parts) - 1
    with nullcontext() if is_last else ddp.no_sync():   # the forward too: it decides
        ddp(part).mean().backward()
# FSDP2, in place of the with: model.set_requires_gradient_sync(is_last)""",
        needs="as many micro-batches on all ranks; with FSDP, memory for gradients that are not sharded",
        when=lambda f, _: f.facts.get("in_backward"),
        least=0.5,
    ),
    Advice(
        id="reduce-sum",
        title="Add up first, and reduce the sum once{there}",
        numerics=rounding("the sum is reduced once"),
        before="total = 0\nfor gradient in gradients:   # of each micro-batch\n    dist.all_reduce(gradient)\n"
        "    total = total + gradient",
        after="total = 0\nfor gradient in gradients:   # of each micro-batch\n    total = total + gradient\n"
        "dist.all_reduce(total)",
        needs="that all ranks reach the end of the loop",
        when=lambda f, _: not f.facts.get("in_backward"),
        least=0.5,
    ),
)


def find_in_all(c: Comparison) -> list[Finding]:
    """Name the reductions of which only the sum is read."""
    sums = c.sums
    if sums is None or sums.saved_ns < THRESHOLDS.naming_share * c.step_ns:
        return []
    num = sums.one.num
    title = f"The same reduction over ranks runs {num} times per step, although only the sum is read"
    if sums.one.in_backward:
        title = f"Gradients are reduced over ranks {num} times per step, although only their sum is read"
    return [
        Finding(
            rule=META.id,
            title=title,
            lost_ns=sums.saved_ns,
            total_ns=int(sums.saved_ns * c.num_steps),
            evidence=(
                f"Of {num} reductions of equal tensors per step, the results of {num - 1} are only added up. Without "
                "these, the replayed steps are shorter by this: transfers, and waiting for other ranks.",
            ),
            where=(sums.where,),
            confidence="high",
            facts={"num": num, "in_backward": sums.one.in_backward},
        )
    ]
