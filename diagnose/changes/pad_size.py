"""Use a size that fits the tiles of the device's matrix units.

What it does
    Rounds a dimension of a product up to a multiple of 64; the added outputs are cut off or masked.

What to watch
    Rows that are not masked take part in the loss.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, other_training

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

TILE = 64  # elements: a multiple of every tile's side
MIN_TILED_SIZE = 1024  # from here on a whole tile more costs little; smaller sizes get what 16 bytes hold


_EIGHT_BITS = r"(?i)Float8|^int8$|^signed char$"


def _applies(program: Program, finding: Finding) -> str:
    size = int(str(finding.facts["size"]))
    if size in program.varying_sizes:
        return f"{size} differs from step to step: it counts tokens or samples"
    if program.layer_sizes and size not in program.layer_sizes:
        return f"{size} is the size of no weight: it counts tokens or samples"
    return ""


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice:
    size = int(str(finding.facts["size"]))
    few = 16 if any(re.search(_EIGHT_BITS, dtype) for dtype in program.dtypes) else 8
    multiple = TILE if size >= MIN_TILED_SIZE else few
    padded = -(-size // multiple) * multiple
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
    applies=_applies,
    without_remedy="a number in the model",
)
