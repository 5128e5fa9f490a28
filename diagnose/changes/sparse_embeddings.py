"""Let embedding tables have sparse gradients.

What it does
    Only the rows that a step looked up have a gradient, and only these are updated.

What to watch
    Adam needs `SparseAdam`, whose moments of other rows stand still; weight decay and momentum do not go with sparse
    gradients. DistributedDataParallel exchanges them over gloo or by gathering.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_kind
from diagnose.changes.common.change import Advice, ByHand, Change, other_training
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables

MIN_SAVED_SHARE, MAX_SAVED_SHARE = 0.3, 0.95


def _effect(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect of shorter tasks, and at most of the launches that dense tables need in their optimizer."""
    import numpy as np

    from diagnose.model.intervals import distinct
    from diagnose.replay.effects import effect_of_tasks

    if t.device_id < 0 or not len(finding.tasks):
        return None
    length = (t.tasks.end - t.tasks.start)[finding.tasks].astype(np.float64)
    called = distinct(t.operators[finding.tasks])
    return effect_of_tasks(
        t,
        finding,
        finding.tasks,
        (MIN_SAVED_SHARE * length, MAX_SAVED_SHARE * length),
        f"Between {percent(MIN_SAVED_SHARE, 0)} and {percent(MAX_SAVED_SHARE, 0)} of what is read and written goes "
        "away; at most the launches for it too.",
        host=t.covering(called[called >= 0]),
        host_left=(1.0, 1 - MAX_SAVED_SHARE),
        frees_host=True,
    )


CHANGE = Change(
    id="sparse-embeddings",
    title="Use sparse gradients for the embedding tables",
    numerics=other_training(
        "moments and weight decay of rows that are not looked up stand still; Adagrad without decay is the same"
    ),
    advice=Advice(
        before="model.table = nn.Embedding(num_rows, width)\n"
        "optimizer = torch.optim.Adagrad(model.parameters(), lr=lr)",
        after=(
            "model.table = nn.Embedding(num_rows, width, sparse=True)\n"
            "tables = [p for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()]\n"
            "others = [p for p in model.parameters() if all(p is not table for table in tables)]\n"
            "optimizers = [torch.optim.Adagrad(tables, lr=lr), torch.optim.AdamW(others, lr=lr, fused=True)]\n"
            "# for tables under Adam: torch.optim.SparseAdam(tables, lr=lr)"
        ),
        least=MIN_SAVED_SHARE,
        most=MAX_SAVED_SHARE,
        needs="an optimizer that takes sparse gradients",
    ),
    applies=to_kind("untouched rows"),
    effect=_effect,
    patch=ByHand("which optimizer the tables need only the script's author knows"),
    edit=ByHand("which optimizer the tables need only the script's author knows"),
    without_remedy="torch has the operators",
)
