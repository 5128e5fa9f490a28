"""Atomic additions collide at the same rows.

What it looks for
    The backward of `table[ids]`, or `scatter_add_`, `index_add_` and the backward of embeddings. Threshold: 10% of GPU
    busy time, at less than half of the GPU's bandwidth.

Why it costs
    Each element is added by an atomic operation. If many indices are equal, the additions wait for each other.

What to do
    Use `F.embedding(ids, table)` instead of `table[ids]`, and `sparse=True` for large tables. Sum sorted segments with
    `torch.segment_reduce`.

How sure
    Medium: how often indices repeat is not recorded. Needs recorded shapes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from diagnose.analyzers.common.advice import Advice, in_training, rounding
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.roofline import Group

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
        when=lambda f, p: f.facts.get("indexed") and in_training(f, p),
        least=0.9,  # of four repaired scripts 0.98 and more
    ),
)


_OPS = (
    r"^aten::(_?index_put(_impl)?_?|index_put_|scatter_add_?|scatter_reduce_?|index_add_?|embedding_dense_backward"
    r"|_embedding_bag_dense_backward|embedding_backward)$"
)
KEPT_PASSES = 2  # times what the bytes need: a sorted sum reads and writes the indices several times
_INDEXING = re.compile(r"index_put")  # the backward of `table[ids]`; of `index_select` it is index_add
_KERNELS = re.compile(
    r"indexing_backward|index_put|scatter_add|scatter_gather|indexFunc|index_add|embedding\w*_?backward"
)


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of scattered additions above what their bytes need: of indexing, or of atomics if that is more."""
    slow = [g for g in t.roofline_groups if re.match(_OPS, g.op) and g.limit == "memory" and g.share < 0.5]
    adds = free & t.tasks_matching(_KERNELS)
    length = np.where(adds, t.tasks.end - t.tasks.start, 0)

    def lost_ns(groups: Sequence[Group]) -> float:
        return sum(float(length[g.tasks].sum()) - KEPT_PASSES * g.bound_ns for g in groups)

    indexed = [g for g in slow if _INDEXING.search(g.op)]
    slow = max(indexed, [g for g in slow if not _INDEXING.search(g.op)], key=lost_ns)
    if not slow:
        return []
    tasks = np.concatenate([g.tasks for g in slow])
    tasks = tasks[adds[tasks]]
    lines = [f"{g.op} {g.shapes}: {g.achieved()}." for g in slow[:2]]
    rule = KernelRule(
        META.id,
        "The backward of a row lookup adds equal indices one by one",
        0.1,  # of the busy time, as for other rules of a busy device
        kept_ns=KEPT_PASSES * sum(g.bound_ns for g in slow),
        evidence=[*lines, *top_kernels(t, tasks, most=2)],
        confidence="medium",
        facts={"indexed": slow is indexed},
    )
    return kernel_finding(t, rule, tasks)
