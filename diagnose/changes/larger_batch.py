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


def _advice(_finding: Finding, _step_ns: float, program: Program) -> Advice | None:
    size = program.batch_size
    now, larger = (str(size), str(2 * size)) if size else ("batch_size", "2 * batch_size")
    if program.server:
        return None  # its scheduler makes the batches
    before, after = f"DataLoader(dataset, batch_size={now})", f"DataLoader(dataset, batch_size={larger})"
    if program.has_loader is False:
        samples = f"{now} samples" if size else "the samples of one call"
        more = f"{larger} samples" if size else "twice as many samples"
        before, after = f"y = model(x)   # {samples}", f"y = model(x)   # {more}, where they wait for each other"
    if program.trains is False:
        return Advice(
            before=before,
            after=after,
            needs="memory for the larger batch, and callers who can wait for it to fill",
            numerics=rounding("kernels for another batch size round differently; compare the outputs"),
        )
    return Advice(
        before=before,
        after=f"{after}  # and the learning rate that goes with it",
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
