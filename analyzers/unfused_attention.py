"""Attention is written out: product, softmax, product.

What it looks for
    A softmax whose input has as many elements as the batched product before it made and the batched product after it
    takes, with the scaling, masks, casts and dropout between them: together at least 2 % of the busy time, or
    of the step with the host's time for them. Without a device the rule `unfused` names it.

Why it costs
    The scores, one for each pair of positions, go to memory and back for each of those kernels. A fused kernel keeps
    them on the chip.

What to do
    Call `scaled_dot_product_attention`, or choose it where the model has a switch.

How sure
    High that it is written out: the shapes of the three operators fit. What is lost is the time between the two
    products, which a fused kernel does not need; what it saves in the products is not counted.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.kernel_findings import busy_part, is_minor
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
MIN_BUSY_SHARE = 0.02  # of the busy time, or of the step; its products gain as well


def find(t: Tables, _free: Mask) -> list[Finding]:
    """Name the time between the products of written-out attention."""
    found = t.attention
    if not found:
        return []
    between = np.concatenate([attention.between for attention in found])
    time = busy_part(t, between)
    if is_minor(t, between, MIN_BUSY_SHARE):
        return []
    products = busy_part(t, np.concatenate([attention.products for attention in found]))
    scores = max(attention.scores for attention in found)
    events = t.trace.events
    rows = np.array([attention.softmax for attention in found], np.intp)
    where = [replace(w, stack=()) for w in locate(t, events.thread[rows], events.start[rows])]
    return [
        Finding(
            rule=META.id,
            title="Attention runs as separate kernels around a softmax",
            lost_ns=time / t.steps.num,
            count=len(found),
            total_ns=time,
            median_ns=int(np.median((t.tasks.end - t.tasks.start)[between])),
            tasks=between,
            evidence=(
                f"{plural(len(found) / t.steps.num, 'time')} a step a softmax stands between two batched products; "
                f"what runs between takes {duration(time / t.steps.num)}, "
                f"the products {duration(products / t.steps.num)}.",
                *([f"Each keeps up to {scores / 1e6:.1f} million scores in memory."] if scores else []),
            ),
            where=tuple(dict.fromkeys(where))[:3],
            confidence="high" if scores else "medium",
        )
    ]
