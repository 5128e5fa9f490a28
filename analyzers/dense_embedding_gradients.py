"""Gradients of large embedding tables are dense.

What it looks for
    An embedding's backward that fills whole tables with zeros. Threshold: 20% of GPU busy time, with the optimizer's
    kernels. Without a GPU, see `work-on-nothing`.

Why it costs
    A step uses few rows of the table, but the optimizer reads and writes every row and its state.

What to do
    Use `nn.Embedding(..., sparse=True)` and a separate optimizer for these tables: SGD, Adagrad or SparseAdam.

How sure
    Medium: how many rows a step uses is not recorded.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.kernel_classes import tasks_of
from diagnose.tables.names import AnyCase

META = RuleMeta(
    id="dense-embedding-gradients",
    kind="kernel",
    order=52,
    changes=("sparse-embeddings",),
)
TITLE = "Gradients of embedding tables are dense, and all rows are updated"
_FILLS = AnyCase(r"fillfunctor|memset")
_BACKWARD = re.compile(
    r"^autograd::engine::evaluate_function: Embedding(Bag)?Backward|embedding(_bag)?_dense_backward$"
)


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of dense gradients and of their updates."""
    fills = np.flatnonzero(free & t.tasks_matching(_FILLS))
    fills = fills[t.launched_in(t.covering(t.calls(_BACKWARD, Kind.OP)))[fills]]
    length = t.tasks.end - t.tasks.start
    if not len(fills) or length[fills].sum() < 0.02 * length.sum():  # the table of a language model's tokens: 0.002
        return []
    updates = np.flatnonzero(free & tasks_of(t, "optimizer"))
    tasks = np.sort(np.concatenate([fills, updates]), kind="stable")
    rule = KernelRule(META.id, TITLE, 0.2, evidence=top_kernels(t, tasks), confidence="medium")
    return kernel_finding(t, rule, tasks)
