"""Look rows up with F.embedding.

What it does
    Replaces indexing by an operator whose backward sorts the indices instead of adding with atomics that collide.

What to watch
    Gradients of equal indices are added in another order.
"""

from __future__ import annotations

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Advice, ByHand, Change, rounding

CHANGE = Change(
    id="embedding-lookup",
    title="Use F.embedding for looking rows up: its backward sorts instead of colliding",
    numerics=rounding("gradients of equal indices are added in another order"),
    patch=ByHand("the look-up is an index in the model's own forward"),
    edit=ByHand("which index looks rows up only the script's author knows"),
    advice=Advice(
        before="rows = table[ids]", after="from torch.nn import functional as F\n\nrows = F.embedding(ids, table)"
    ),
    applies=to_training,
    without_remedy="one call in place of another of torch",
)
