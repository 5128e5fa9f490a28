"""Use a larger batch.

What it does
    Makes each launch do more: launching costs the same for it.

What to watch
    A larger batch trains differently; the learning rate goes with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, other_training, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(_finding: Finding, _step_ns: float, program: Program) -> Advice:
    size = program.batch_size
    now, larger = (str(size), str(2 * size)) if size else ("batch_size", "2 * batch_size")
    if program.trains is False:
        return Advice(
            before=f"DataLoader(dataset, batch_size={now})",
            after=f"DataLoader(dataset, batch_size={larger})",
            needs="memory for the larger batch, and callers who can wait for it to fill",
            numerics=rounding("kernels for another batch size round differently; compare the outputs"),
        )
    return Advice(
        before=f"DataLoader(dataset, batch_size={now})",
        after=f"DataLoader(dataset, batch_size={larger})  # and the learning rate that goes with it",
        needs="memory for the larger batch",
    )


CHANGE = Change(
    id="larger-batch",
    title="Use a larger batch: launching costs the same for it",
    numerics=other_training("a larger batch trains differently"),
    patch=ByHand("it changes training, which is the user's to decide"),
    edit=ByHand("it changes training, which is the user's to decide"),
    advice=_advice,
    without_remedy="it changes training, which is the user's to decide",
)
