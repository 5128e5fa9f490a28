"""Measure which size of the batch fits and is fastest.

What it does
    Tries growing batches on real steps before the run, until memory is out or samples a second no longer grow.

What to watch
    A larger batch trains differently; the learning rate goes with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, other_training

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(_finding: Finding, _step_ns: float, program: Program) -> Advice | None:
    if program.server:
        return None  # its scheduler makes the batches
    state = "" if program.trains is False else ", state=(model, optimizer)"
    return Advice(
        after="from diagnose.kernels.batch_size import find_batch_size\n\n"
        f"found = find_batch_size(step{state}, start={program.batch_size or 8})   # step(size) runs one\n"
        "print(found)   # seconds and samples a second by size; found.fastest, found.largest",
        most=0.0,
        needs="the step as a function of the size of its batch",
    )


CHANGE = Change(
    id="find-batch-size",
    title="Measure which size of the batch fits and is fastest",
    numerics=other_training("a larger batch trains differently"),
    patch=ByHand("it changes training, which is the user's to decide"),
    edit=ByHand("which lines are one step only the script's author knows"),
    advice=_advice,
    remedy="diagnose.kernels.batch_size",
)
