"""Adding rows at indices, by atomic operations that meet at the same addresses.

What it looks for
    The backward of advanced indexing, `index_put_(accumulate=True)`, `scatter_add_`, `index_add_`, the backward of
    embeddings: at least 10 % of the busy time, at less than half of the bandwidth that their bytes need.

Why it costs
    Each element is added by an atomic operation, or sorted first. Where many indices are the same, the additions wait
    for each other.

What to do
    `F.embedding` or `index_select` instead of `table[ids]`: their backward is made for it. `sparse=True` for large
    tables. Sums over sorted segments with `torch.segment_reduce`.

How sure
    Medium: the time is measured and the bytes follow from the shapes, but not how often indices repeat. Without
    recorded shapes nothing is found.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.analyzers.common.advice import Advice, in_training, rounding
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables

META = RuleMeta(
    id="scatter-atomics",
    kind="kernel",
    order=80,
    changes=("embedding-lookup",),
    needs=("shapes", "peak rates of the device"),
)
ADVICE = (
    Advice(
        id="embedding-lookup",
        title="Use F.embedding for looking rows up: its backward sorts instead of colliding",
        numerics=rounding("gradients of equal indices are added in another order"),
        before="rows = table[ids]",
        after="from torch.nn import functional as F\n\nrows = F.embedding(ids, table)",
        when=in_training,
    ),
)


_OPS = (
    r"^aten::(_?index_put(_impl)?_?|index_put_|scatter_add_?|scatter_reduce_?|index_add_?|embedding_dense_backward"
    r"|_embedding_bag_dense_backward|embedding_backward)$"
)
_KERNELS = re.compile(
    r"indexing_backward|index_put|scatter_add|scatter_gather|indexFunc|index_add|embedding\w*_?backward"
)


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of scattered additions above what their bytes need."""
    slow = [g for g in t.roofline_groups if re.match(_OPS, g.op) and g.limit == "memory" and g.share < 0.5]
    if not slow:
        return []
    tasks = np.concatenate([g.tasks for g in slow])
    tasks = tasks[free[tasks] & t.tasks_matching(_KERNELS, tasks)]
    kept = 2 * sum(g.bound_ns for g in slow)  # a sorted sum reads and writes the indices several times
    lines = [f"{g.op} {g.shapes}: {g.achieved()}." for g in slow[:2]]
    rule = KernelRule(
        META.id,
        "Rows with equal indices are added one after the other",
        0.1,  # of the busy time, as for other rules of a busy device
        kept_ns=kept,
        evidence=[*lines, *top_kernels(t, tasks, most=2)],
        confidence="medium",
    )
    return kernel_finding(t, rule, tasks)
