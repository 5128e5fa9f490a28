"""Whole rows are sorted.

What it looks for
    Kernels that sort: at least 8 % of the busy time, those of an embedding's backward pass left out.

Why it costs
    A sort of long rows reads and writes all of them several times. Often a few of the largest or smallest are used,
    which one pass finds, or what is sorted is the same in each step.

What to do
    `torch.topk` where a few are used; a sort, a `unique` or an index that does not change is made once, before the
    loop.

How sure
    High for the time. What is done with the sorted rows is not in the trace.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.dense_embeddings import in_embedding_backward
from diagnose.tables.names import AnyCase

META = RuleMeta(
    id="full-sort",
    kind="kernel",
    order=76,
    changes=("select-top-k",),
)
MIN_BUSY_SHARE = 0.08  # of the busy time: sorting a few thousand keys beside a model takes less
KEPT = 0.3  # of the time, by the selection of a few from each row
_KERNELS = AnyCase(r"radix_?sort|merge_?sort|bitonic_?sort|segmented_?sort")


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of kernels that sort."""
    tasks = np.flatnonzero(free & t.tasks_matching(_KERNELS))
    tasks = tasks[~in_embedding_backward(t, tasks)]
    kept_ns = KEPT * float((t.tasks.end - t.tasks.start)[tasks].sum())
    evidence = top_kernels(t, tasks, most=2)
    rule = KernelRule(META.id, "The device sorts whole rows", MIN_BUSY_SHARE, kept_ns, evidence, confidence="medium")
    return kernel_finding(t, rule, tasks)
