"""Let embedding tables have sparse gradients.

What it does
    Only the rows that a step looked up have a gradient, and only these are updated.

What to watch
    Adam needs `SparseAdam`, whose moments of other rows stand still; weight decay and momentum do not go with sparse
    gradients. DistributedDataParallel exchanges them over gloo or by gathering.
"""

from __future__ import annotations

from diagnose.changes.common.change import Advice, ByHand, Change, other_training

CHANGE = Change(
    id="sparse-embeddings",
    title="Let the embedding tables have sparse gradients",
    numerics=other_training(
        "moments and weight decay of rows that are not looked up stand still; Adagrad without decay is the same"
    ),
    advice=Advice(
        before="table = nn.Embedding(num_rows, width)\noptimizer = torch.optim.Adagrad(model.parameters(), lr=lr)",
        after=(
            "table = nn.Embedding(num_rows, width, sparse=True)\n"
            "tables = [p for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()]\n"
            "others = [p for p in model.parameters() if all(p is not table for table in tables)]\n"
            "optimizers = [torch.optim.Adagrad(tables, lr=lr), torch.optim.AdamW(others, lr=lr, fused=True)]\n"
            "# for tables under Adam: torch.optim.SparseAdam(tables, lr=lr)"
        ),
        least=0.3,
        most=0.95,
        needs="an optimizer that takes sparse gradients",
    ),
    patch=ByHand("which optimizer the tables need only the script's author knows"),
    edit=ByHand("which optimizer the tables need only the script's author knows"),
    without_remedy="torch has the operators",
)
