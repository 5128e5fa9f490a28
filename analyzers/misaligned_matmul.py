"""Sizes of matrix products do not fit the tensor cores' tiles.

What it looks for
    Products with a size that is not a multiple of 8 (16-bit), 16 (8-bit) or 4 (TF32). Threshold: 5% of GPU busy time,
    below 40% of the peak rate.

Why it costs
    Libraries use slower kernels for rows that do not start at multiples of 16 bytes.

What to do
    Pad the size once, in the model: a vocabulary of 50257 to 50304, a head width of 65 to 72.

How sure
    Medium: the saving assumes 60% of the peak after padding. Needs recorded shapes.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.advice import Advice, other_training
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.perf_model.op_inputs import inputs
from diagnose.tables import Tables
from diagnose.tables.roofline import REACHED_SHARE, SLOW_KERNEL_SHARE, gpu_spec

META = RuleMeta(
    id="misaligned-matmul",
    kind="kernel",
    order=100,
    changes=("pad-size",),
    needs=("shapes", "peak rates of the device"),
)
ADVICE = (
    Advice(
        id="pad-size",
        title="Use {padded_size} instead of {size}: a size that fits the tiles",
        numerics=other_training("the added rows take part unless they are masked"),
        before="head = nn.Linear(width, {size})",
        after="head = nn.Linear(width, {padded_size})  # outputs beyond {size} are cut off or masked",
        watch="Rows that are not masked take part in the loss.",
        when=lambda f, p: (
            f.facts.get("size") not in p.varying_sizes  # which counts tokens or samples
            and (not p.layer_sizes or f.facts.get("size") in p.layer_sizes)
        ),
        least=0.2,
    ),
)


MULTIPLE = {"f16": 8, "fp8": 16, "tf32": 4}  # elements in 16 bytes
_PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm", "aten::linear"})


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of products above what padded ones need."""
    peak, free = gpu_spec(t), free.copy()
    for attention in t.attention:  # its sequence has the length it has; the fused operator takes any
        free[attention.products] = False
    slow = (g for g in t.roofline_groups if g.share < SLOW_KERNEL_SHARE and free[g.tasks].all())
    found = []
    for g in slow:
        given = inputs(g.shapes, g.types) if g.op in _PRODUCTS and g.precision in MULTIPLE else None
        tensors = given.tensors if given is not None else ()
        sizes = {n for tensor in tensors if len(tensor.shape) > 1 for n in tensor.shape[-2:]}
        # Smaller sizes are vectors' work, which tiles do not help.
        if odd := max((n for n in sizes if n >= 32 and n % MULTIPLE[g.precision]), default=0):
            found.append((g, odd))
    if peak is None or not found:
        return []
    size = found[0][1]
    multiple = 64 if size >= 1024 else 8  # of larger sizes a whole tile more costs little
    rule = KernelRule(
        META.id,
        "Matrix products have sizes that miss the tiles",
        kept_ns=sum(g.bound_ns for g, _ in found) / REACHED_SHARE["compute"],
        evidence=[
            f"{g.op} {g.shapes}: {odd} is not a multiple of {MULTIPLE[g.precision]}; {g.achieved()} of {g.peak(peak)}."
            for g, odd in found[:3]
        ],
        confidence="medium",
        facts={"size": size, "padded_size": -(-size // multiple) * multiple},
    )
    return kernel_finding(t, rule, np.concatenate([g.tasks for g, _ in found]))
