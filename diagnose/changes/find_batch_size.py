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


_TRAINING = """def run(size):   # one step of your own, of this many samples
    x, y = next(iter(DataLoader(dataset, batch_size=size)))
    criterion(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()"""
_INFERENCE = """def run(size):   # one step of your own, of this many samples
    with torch.inference_mode():
        model(next(iter(DataLoader(dataset, batch_size=size))))"""


def _advice(_finding: Finding, _step_ns: float, program: Program) -> Advice | None:
    if program.server:
        return None  # its scheduler makes the batches
    trains = program.trains is not False
    step = _TRAINING if trains else _INFERENCE
    state = ", state=(model, optimizer)" if trains else ""
    return Advice(
        after="from diagnose.kernels.batch_size import find_batch_size\n\n"
        f"{step}\n\nfound = find_batch_size(run{state}, start={program.batch_size or 8})\n"
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
