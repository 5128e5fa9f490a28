"""Write into slices of a tensor that is made once.

What it does
    Makes the whole tensor before the loop and copies each piece to its place, where `cat` copies all pieces each time.

What to watch
    The longest length has to be known, and what reads the tensor reads a slice of it. CUDA graphs come after it: they
    hold one length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_kind
from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

_CACHE = Advice(
    before="keys = torch.cat([keys, new_keys], dim=2)",
    after=(
        "cache = torch.empty(batch_size, heads, max_length, width, device=device, dtype=dtype)   # once\n"
        "cache[:, :, length : length + 1] = new_keys   # in each step\n"
        'keys = cache[:, :, : length + 1]   # transformers: cache_implementation="static"'
    ),
    least=0.5,
    most=0.95,
    needs="a known longest length, and memory for it",
)
_ROWS = Advice(
    before="rows = torch.cat([rows, new])",
    after=(
        "buffer = new.new_empty(capacity, *new.shape[1:])   # once; end = 0\n"
        "place = torch.arange(end, end + len(new)) % capacity   # the oldest rows are written over\n"
        "buffer[place] = new\n"
        "end += len(new)\n"
        "rows = buffer[:end]   # all of it once it is full"
    ),
    least=0.7,
    most=1.0,
    needs="a known longest length, and memory for it; where rows are read in their order, it begins at end % capacity",
)


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    return _ROWS if finding.facts.get("in_rows") else _CACHE


CHANGE = Change(
    id="preallocate",
    title="Write each piece into a tensor that is made once, instead of concatenating",
    numerics=identical(),
    advice=_advice,
    applies=to_kind("copied"),
    patch=ByHand("how long the tensor gets only the script's author knows"),
    edit=ByHand("how long the tensor gets only the script's author knows"),
    without_remedy="torch has the operators",
)
