"""Gradients of large embedding tables are dense.

What it looks for
    An embedding's backward pass that fills whole tables with zeros (at least 2 % of the busy time), and the optimizer's
    kernels: together at least 20 % of the busy time. Without a device: backward passes and updates of tables of which
    a step looks up a quarter of the rows or fewer, together at least 10 % of the step.

Why it costs
    A step looks up some thousand rows of a table of millions. With dense gradients it writes zeros for all of them, and
    the optimizer reads and writes every row of the table and of its state.

What to do
    `sparse=True` for the tables, with an optimizer that takes sparse gradients (SGD, Adagrad, SparseAdam), the other
    parameters in one of their own.

How sure
    High that the gradients are dense and large. How many rows a step looks up is known where shapes were recorded.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleGaps, IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals, total
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.dense_embeddings import dense_updates, in_embedding_backward
from diagnose.tables.kernel_classes import tasks_of
from diagnose.tables.names import AnyCase
from diagnose.text.numbers import duration

META = RuleMeta(
    id="dense-embedding-gradients",
    kind="kernel",
    order=52,
    host_order=76,
    legend=Legend("whole embedding tables were updated", "#a8762f"),
    changes=("sparse-embeddings",),
    host_needs=("shapes",),
)
MIN_BUSY_SHARE = 0.2  # of the busy time, the optimizer's kernels included
MIN_FILLED = 0.02  # of the busy time: the table of a language model's tokens takes 0.2 %
MIN_OF_STEP = 0.1  # without a device
TITLE = "Gradients of embedding tables are dense, and all rows are updated"
_FILLS = AnyCase(r"fillfunctor|memset")


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim the operators that fill and update whole tables."""
    return worth_claiming(t, left, dense_updates(t), MIN_OF_STEP)


def find(t: Tables, free: Mask | None = None) -> list[Finding]:
    """Name the time of dense gradients and of their updates."""
    if free is None:
        return idle_finding(t, IdleRule(META.id, TITLE, probe="middle", evidence=_texts))
    fills = np.flatnonzero(free & t.tasks_matching(_FILLS))
    fills = fills[in_embedding_backward(t, fills)]
    length = t.tasks.end - t.tasks.start
    if not len(fills) or length[fills].sum() < MIN_FILLED * max(float(length.sum()), 1.0):
        return []
    updates = np.flatnonzero(free & tasks_of(t, "optimizer"))
    tasks = np.sort(np.concatenate([fills, updates]), kind="stable")
    rule = KernelRule(META.id, TITLE, MIN_BUSY_SHARE, 0.0, top_kernels(t, tasks, most=3), confidence="medium")
    return kernel_finding(t, rule, tasks)


def _texts(t: Tables, _gaps: IdleGaps) -> list[str]:
    took = duration(total(dense_updates(t)) / t.steps.num)
    return [f"Whole tables, of which a step looks up few rows, are filled and updated for {took} of the step."]
