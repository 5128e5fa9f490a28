"""Use a size that fits the tiles of the device's matrix units.

What it does
    Rounds a dimension of a product up to a multiple of 64; the added outputs are cut off or masked.

What to watch
    Rows that are not masked take part in the loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, other_training

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding

TILE = 64  # elements: a multiple of every tile's side


def _advice(finding: Finding, _step_ns: float) -> Advice:
    size = int(str(finding.facts["size"]))
    padded = -(-size // TILE) * TILE
    return Advice(
        title=f"Use {padded} instead of {size}: a size that fits the tiles",
        before=f"head = nn.Linear(width, {size})",
        after=f"head = nn.Linear(width, {padded})  # the last {padded - size} outputs are cut off or masked",
        least=0.2,
    )


CHANGE = Change(
    id="pad-size",
    title="Use a size that fits the tiles",
    numerics=other_training("the added rows take part unless they are masked"),
    patch=ByHand("the size is a number in the model's own definition"),
    edit=ByHand("what the size stands for only the script's author knows"),
    advice=_advice,
    without_remedy="a number in the model",
)
