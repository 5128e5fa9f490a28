"""Compute it once, only when it is read, or for what is new.

What it does
    Takes work out of the training step that no gradient passes through.

What to watch
    What is read in each step, or changes with the weights, has to stay there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import at_line, own_place, to_training
from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    if finding.facts.get("kind") == "gradient":
        return None
    place = own_place(finding)
    at = f" ({at_line(place)})" if place else ""
    return Advice(
        title=f"Compute it once, only when it is read, or for what is new{at}",
        before=(place.code or "") if place else "",
        after="# the same in each step: once, before the loop\n"
        "if step % 50 == 0:   # read now and then, as a metric or a statistic: only then\n"
        "    ...\n"
        "buffer = torch.empty(16, 4)   # a few new rows of a buffer: in place, not by torch.cat of all of it\n"
        "rows = torch.arange(step, step + 2) % len(buffer)\n"
        "buffer[rows] = 0.0",
        least=0.5,
        most=1.0,
        needs="a result that is not needed in each step",
    )


CHANGE = Change(
    id="compute-less-often",
    title="Compute it once, only when it is read, or for what is new",
    numerics=identical("where it is the same in each step or only read now and then"),
    advice=_advice,
    applies=to_training,
    patch=ByHand("what the step needs of it only the script's author knows"),
    edit=ByHand("what the step needs of it only the script's author knows"),
    without_remedy="a place in the script's own loop",
)
