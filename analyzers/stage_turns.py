"""Stages of a pipeline take turns: one works while the others wait.

What it looks for
    Ranks that exchange micro-batches by send and receive, and work together hardly longer than the step takes.

Why it costs
    A stage that waits for the gradient of one micro-batch before it begins the next one overlaps with no other stage.

What to do
    Run the forward of all micro-batches first, then receive the gradients in order. Or use a schedule of
    `torch.distributed.pipelining`, such as 1F1B.

How sure
    High. Needs `diagnose trace` of all ranks, on the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.analyzers.common.advice import Advice, identical, rounding
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import duration, plural

if TYPE_CHECKING:
    from diagnose.ranks.comparison import Comparison

META = RuleMeta(
    id="stage-turns",
    kind="rank",
    order=7,
    changes=("pipeline-forwards", "cut-into-micro-batches"),
    needs=("all ranks",),
)
_SCHEDULED = """# first stage: all forwards, then all backwards; the next stage works on one meanwhile
outputs, sends = [], []
for part in batch.chunk(num_micro):
    outputs.append(model(part))
    sends.append(dist.isend(outputs[-1].detach(), dst=1))
for output in outputs:
    gradient = torch.empty_like(output)
    dist.recv(gradient, src=1)
    output.backward(gradient)
for send in sends:
    send.wait()
# or torch.distributed.pipelining: PipelineStage with ScheduleGPipe or Schedule1F1B"""
ADVICE = (
    Advice(
        id="pipeline-forwards",
        title="Run the forward of all micro-batches before waiting for the first gradient{there}",
        numerics=identical(),
        after=_SCHEDULED,
        needs="memory for the activations of all micro-batches; 1F1B keeps as many as there are stages",
        when=lambda f, _: f.facts.get("num_micro", 0) != 1,
    ),
    Advice(
        id="cut-into-micro-batches",
        title="Cut the batch into 4 micro-batches that follow each other through the stages{there}",
        numerics=rounding("gradients equal the whole batch's, but batch norm sees the parts"),
        after=_SCHEDULED,
        needs="micro-batches that still fill each device",
        when=lambda f, _: f.facts.get("num_micro") == 1,
    ),
)


def find_in_all(c: Comparison) -> list[Finding]:
    """Name stages that work one after the other, and where the first one waits for what it has sent."""
    turns = c.turns
    if turns is None or turns.step_ns - turns.pipelined_ns < THRESHOLDS.naming_share * c.step_ns:
        return []
    lost_ns = turns.step_ns - turns.pipelined_ns
    waits = ", ".join(f"rank {p.rank} {ns / 1e6:.2f}" for p, ns in zip(c.ranks, turns.waited_ns, strict=True))
    first = c.ranks[turns.first].rank
    micro = plural(turns.num_micro, "micro-batch")
    return [
        Finding(
            rule=META.id,
            title="Stages of the pipeline take turns: one works while the others wait",
            lost_ns=lost_ns,
            total_ns=int(lost_ns * c.num_steps),
            evidence=(
                f"{turns.at_once:.1f} of {len(c.ranks)} stages work at once. Rank {first} sends a micro-batch and "
                f"waits for what comes back before the next one: {micro} a step.",
                f"If they followed each other, these times would make a step of {duration(turns.pipelined_ns)}.",
                f"Waiting for the other stages, ms per step: {waits}.",
            ),
            where=turns.where[:3],
            confidence="high",
            facts={"num_micro": turns.num_micro},
        )
    ]
