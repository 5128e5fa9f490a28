"""Select a few of each row instead of sorting all of it.

What it does
    Calls `topk` in the place of a sort that is cut afterwards; or sorts once what is the same in each step.

What to watch
    Among equal values another one may be selected.
"""

from __future__ import annotations

from diagnose.changes.common.applies import to_kind
from diagnose.changes.common.change import Advice, ByHand, Change, identical

CHANGE = Change(
    id="select-top-k",
    title="Select with topk instead of sorting, or sort once what does not change",
    numerics=identical(", but for which of equal values is taken"),
    advice=Advice(
        before="nearest = distance.argsort(dim=-1)[..., :num_neighbours]",
        after=(
            "nearest = distance.topk(num_neighbours, dim=-1, largest=False).indices\n"
            "# what does not change from step to step, such as the edges of a graph: sort it once, before the loop"
        ),
        least=0.3,
        most=1.0,
        needs="a use of a few of each row, or data that stays the same",
    ),
    applies=to_kind("sorted"),
    patch=ByHand("what the sorted rows are used for only the script's author knows"),
    edit=ByHand("what the sorted rows are used for only the script's author knows"),
    without_remedy="torch has the operators",
)
