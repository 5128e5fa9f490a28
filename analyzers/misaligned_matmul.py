"""Matrix products whose sizes do not fit the tensor cores' tiles.

What it looks for
    16-bit, 8-bit or TF32 products in which a size is not a multiple of 8 (16-bit), 16 (8-bit) or 4 (TF32) elements, and
    that reach less than 40 % of the peak rate: at least 5 % of the busy time.

Why it costs
    Rows that do not begin at a multiple of 16 bytes cannot be loaded 16 bytes at a time: the libraries fall back to
    kernels that load single elements.

What to do
    Pad the size once, in the model: a vocabulary of 50257 to 50304, a head width of 65 to 72.

How sure
    Medium: sizes and times are recorded; that a padded product reaches 60 % of the peak is an estimate.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.perf_model.op_inputs import inputs
from diagnose.tables import Tables
from diagnose.tables.roofline import REACHED_SHARE, SLOW_KERNEL_SHARE, Group, gpu_spec

META = RuleMeta(
    id="misaligned-matmul",
    kind="kernel",
    order=100,
    changes=("pad-size",),
    needs=("shapes", "peak rates of the device"),
)
MIN_BUSY_SHARE = 0.05  # of the busy time
MULTIPLE = {"f16": 8, "fp8": 16, "tf32": 4}  # elements in 16 bytes
MIN_SIZE = 32  # sizes below this are vectors' work, which tiles do not help
_PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm", "aten::linear"})


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of products above what padded ones need."""
    peak = gpu_spec(t)
    found = [(g, odd) for g in t.roofline_groups if (odd := _odd_size(g)) and g.share < SLOW_KERNEL_SHARE]
    if peak is None or not found:
        return []
    free = free.copy()
    for attention in t.attention:  # its sequence has the length it has; the fused operator takes any
        free[attention.products] = False
    found = [(g, odd) for g, odd in found if free[g.tasks].all()]
    tasks = np.concatenate([g.tasks for g, _ in found]) if found else np.zeros(0, np.intp)
    lines = [
        f"{g.op} {g.shapes}: {odd} is not a multiple of {MULTIPLE[g.precision]}; {g.achieved()} of {g.peak(peak)}."
        for g, odd in found[:3]
    ]
    rule = KernelRule(
        META.id,
        "Matrix products have sizes that miss the tiles",
        MIN_BUSY_SHARE,
        kept_ns=sum(g.bound_ns for g, _ in found) / REACHED_SHARE["compute"],
        evidence=lines,
        confidence="medium",
        facts={"size": found[0][1] if found else 0},
    )
    return kernel_finding(t, rule, tasks)


def _odd_size(group: Group) -> int:
    """Return a size of the product that does not fit, 0 where all do."""
    multiple = MULTIPLE.get(group.precision)
    given = inputs(group.shapes, group.types) if multiple and group.op in _PRODUCTS else None
    if given is None or multiple is None:
        return 0
    sizes = {n for tensor in given.tensors if len(tensor.shape) > 1 for n in tensor.shape[-2:]}
    return max((n for n in sizes if n % multiple and n >= MIN_SIZE), default=0)
