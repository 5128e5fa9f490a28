"""Attention is written out: product, softmax, product.

What it looks for
    A softmax between two batched products. Threshold: 2% of GPU busy time or of the step. Without a GPU, see `unfused`.

Why it costs
    Each kernel writes the scores of all pairs of positions to memory. A fused kernel keeps them on the chip.

What to do
    Call `F.scaled_dot_product_attention`, or select it in the model's configuration.

How sure
    High. The cost excludes the two products. Needs recorded shapes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.kernel_findings import KernelRule, busy_part, kernel_finding
from diagnose.analyzers.common.locate import locate
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.text.numbers import duration, plural

META = RuleMeta(
    id="unfused-attention",
    kind="kernel",
    order=40,
    changes=("fused-attention",),
    needs=("shapes",),
)


def find(t: Tables, _free: Mask) -> list[Finding]:
    """Name the time between the products of written-out attention."""
    found = t.attention
    if not found:
        return []
    between, products = (np.concatenate([getattr(each, part) for each in found]) for part in ("between", "products"))
    num, scores = len(found) / t.steps.num, max(attention.scores for attention in found)
    events, rows = t.trace.events, np.array([attention.softmax for attention in found], np.intp)
    where = dict.fromkeys(replace(w, stack=()) for w in locate(t, events.thread[rows], events.start[rows]))
    rule = KernelRule(
        META.id,
        "Attention runs as separate kernels around a softmax",
        min_share=0.02,  # its products gain as well
        evidence=(
            f"{plural(num, 'time')} per step a softmax is between two batched products; what runs between takes "
            f"{duration(busy_part(t, between) / t.steps.num)}, the products "
            f"{duration(busy_part(t, products) / t.steps.num)}.",
            *([f"Each keeps up to {scores / 1e6:.1f} million scores in memory."] if scores else []),
        ),
        confidence="high" if scores else "medium",
    )
    return [replace(each, where=tuple(where)[:3]) for each in kernel_finding(t, rule, between)]
