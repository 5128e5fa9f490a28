"""Make the loader's iterator once, and take each batch from it.

What it does
    Goes on with the iterator that is there where the script made a new one for each batch. A new one draws the order of
    all samples, as many numbers as the dataset has, to read one batch of them; workers it would start anew.

What to watch
    An iterator reads each sample once before it ends: batches then come without repetition within an epoch, where a new
    one for each batch may draw a sample again. To draw with repetition, and for as many batches as wanted, give the
    loader `RandomSampler(dataset, replacement=True, num_samples=…)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, other_training
from diagnose.changes.common.loading import number

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    share = number(finding.facts, "restart_share")
    if not share:
        return None
    return Advice(
        before="batch = next(iter(loader))",
        after="batches = iter(loader)   # once\n"
        "\n"
        "batch = next(batches, None)   # in each step\n"
        "if batch is None:   # the epoch has ended\n"
        "    batches = iter(loader)\n"
        "    batch = next(batches)",
        least=0.8 * share,
        most=min(share + 0.1, 1.0),  # making the iterator has a cost of its own
    )


CHANGE = Change(
    id="keep-iterator",
    title="Make the loader's iterator once, not for each batch",
    numerics=other_training("batches come without repetition within an epoch"),
    patch=ByHand("where the script asks for batches only its author knows"),
    edit=ByHand("where the script asks for batches only its author knows"),
    advice=_advice,
    without_remedy="a line of the script's own",
)
