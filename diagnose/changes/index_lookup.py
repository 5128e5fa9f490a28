"""Look rows up by index instead of multiplying one-hot rows.

What it does
    Replaces the one-hot rows and their product with a weight by `F.embedding`, which reads the rows that the ids name.
    Of a linear layer, `nn.Embedding` takes the place, with the layer's weight transposed; a bias is added after it.

What to watch
    Checkpoints hold the layer's weight the other way round. `weight[ids]` gives the same rows, but its backward pass
    adds them one by one: on a CPU it took longer than the product had for up to 100 columns. Other uses of the one-hot
    rows, as counts, stay as they are.
"""

from __future__ import annotations

from diagnose.changes.common.applies import to_kind
from diagnose.changes.common.change import Advice, ByHand, Change, rounding

MIN_SAVED_SHARE = 0.9  # of what it takes beyond a lookup: what a lookup itself takes is an estimate
_BEFORE = "rows = F.one_hot(ids, num_classes).float() @ table"
_AFTER = """rows = F.embedding(ids, table)  # table: (num_classes, width)
# in place of nn.Linear(num_classes, width): nn.Embedding, its weight that of the layer transposed"""

CHANGE = Change(
    id="index-lookup",
    title="Look rows up by index instead of multiplying one-hot rows",
    numerics=rounding("gradients of a row that is looked up several times are added in another order"),
    applies=to_kind("one-hot"),
    advice=Advice(before=_BEFORE, after=_AFTER, least=MIN_SAVED_SHARE),
    patch=ByHand("which rows are one-hot, and what else reads them, only the script's author knows"),
    edit=ByHand("which rows are one-hot, and what else reads them, only the script's author knows"),
    without_remedy="one call in place of another of torch",
)
