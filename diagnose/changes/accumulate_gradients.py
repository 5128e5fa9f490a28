"""Accumulate gradients over several small batches.

What it does
    Runs forward and backward on parts of a batch, exchanges gradients once, and updates once. At the same batch it
    needs less memory; with as many samples in each part as before it exchanges less often.

What to watch
    Batch norm sees the parts. Samples are weighed by their number, so that a shorter last part is no error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_data_parallel_training, to_training
from diagnose.changes.common.change import Advice, ByHand, Change, other_training, rounding
from diagnose.changes.common.memory import ACTIVATIONS, held

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


PARTS = 4


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice:
    code = (
        "from diagnose.kernels.accumulation import GradientAccumulation\n\n"
        f"accumulation = GradientAccumulation(model, optimizer, every={PARTS})\n"
        "for x, y in accumulation.over(loader):\n"
        "    with accumulation.micro_batch(len(x)) as micro:\n"
        "        micro.backward(criterion(model(x), y))   # exchanges and updates with the last part"
    )
    if "is_exchange" in finding.facts:
        return Advice(
            title=f"Exchange gradients once for {PARTS} batches",
            after=code,
            needs="a larger batch for each update, with the learning rate that goes with it",
        )
    size = program.batch_size
    parts = f"batches of {max(size // PARTS, 1)} instead of {size}" if size else f"batches of 1/{PARTS} of the size"
    return Advice(
        title=f"Cut the batch into {PARTS} parts and accumulate their gradients",
        after=f"# the loader: {parts}\n{code}",
        needs="more launches a step",
        numerics=rounding("gradients equal the large batch's to 2e-7, but batch norm sees the parts"),
        frees_bytes=int(held(finding, ACTIVATIONS) * (1 - 1 / PARTS)),
        spares_samples=True,
    )


def _applies(program: Program, finding: Finding) -> str:
    if finding.facts.get("is_exchange"):
        return "the exchange is not a reduction of gradients"
    checked = to_data_parallel_training if "is_exchange" in finding.facts else to_training
    return checked(program, finding)


CHANGE = Change(
    id="accumulate-gradients",
    title="Accumulate gradients over several small batches",
    numerics=other_training("updates come less often, each of more samples"),
    patch=ByHand("which batch is cut, and how often is updated, is the user's to decide"),
    edit=ByHand("which lines are forward and backward only the script's author knows"),
    advice=_advice,
    applies=_applies,
    remedy="diagnose.kernels.accumulation",
)
