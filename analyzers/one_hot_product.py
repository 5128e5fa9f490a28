"""Rows of a weight are looked up by a product with one-hot rows.

What it looks for
    Rows that `one_hot` makes (or a 1 scattered into zeros), of at least 32 columns, multiplied by a weight. What they
    take (to make and convert them, the product, its functions in the backward pass) beyond a lookup of the same rows:
    at least 3 % of the step, or of the busy time. Rows that an operator takes with others of their shape, as a loss of
    soft labels, do not count.

Why it costs
    All but one of the numbers in a row are zeros. They are written, converted, and multiplied by the whole weight, and
    once more for its gradient. A lookup reads the one row that is left.

What to do
    `F.embedding(ids, weight)`, or `nn.Embedding` in place of the linear layer.

How sure
    High where the product follows at once. Tensors are told apart by their shape. The share that a lookup would keep
    is taken from the number of columns.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.callers import operator_lines
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding
from diagnose.analyzers.common.titles import ONE_HOT_PRODUCT
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.one_hot_products import one_hot_products

META = RuleMeta(
    id="one-hot-product",
    kind="idle",
    order=134,
    host_order=84,
    legend=Legend("one-hot rows were multiplied", "#b0588f"),
    changes=("index-lookup",),
    needs=("shapes",),
    without_dataflow=True,
)
MIN_STEP_SHARE = 0.03  # of the step, or of the busy time
MAX_NAMED = 3


def claim(_t: Tables, _left: Intervals) -> Intervals:
    """Claim no idle time: a lookup makes kernels shorter, and the few it saves are no cause of gaps."""
    return EMPTY


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim what a lookup would not take of the operators."""
    found = one_hot_products(t)
    return EMPTY if found is None else worth_claiming(t, left, found.lost, MIN_STEP_SHARE)


def find(t: Tables) -> list[Finding]:
    """Name the products, how many columns their rows have, and their lines."""
    found = one_hot_products(t)
    if found is None:
        return []
    columns = " and ".join(f"{each:,}" for each in found.columns[-MAX_NAMED:])
    text = (
        f"One-hot rows of {columns} columns are multiplied by a weight {max(round(found.num), 1)} × a step: each row "
        "of the result is a row of the weight."
    )
    facts = {"columns": found.columns[-1]}
    where = operator_lines(t, found.forward, found.times)
    if t.device_id < 0:
        rule = IdleRule(META.id, ONE_HOT_PRODUCT, probe="middle", evidence=lambda _t, _o: [text], facts=facts)
        return [replace(each, where=where or each.where) for each in idle_finding(t, rule)]
    tasks = np.flatnonzero(t.launched_in(found.host))
    kept = (1 - found.share) * float((t.tasks.end - t.tasks.start)[tasks].sum())
    waste = KernelRule(META.id, ONE_HOT_PRODUCT, MIN_STEP_SHARE, kept, [text], facts=facts)
    return [replace(each, where=where or each.where) for each in kernel_finding(t, waste, tasks)]
