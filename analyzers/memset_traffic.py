"""Memory is filled with zeros, or another number, again and again.

What it looks for
    Fills by `cudaMemset`, `fill_` and `zero_`. Threshold: 5% of GPU busy time.

Why it costs
    A fill writes the whole tensor. Zeroed gradients are then read and added to, instead of written once.

What to do
    Use `zero_grad(set_to_none=True)`, the default. Use `torch.empty` for tensors that are overwritten, and reuse
    buffers.

How sure
    High for the time. Some fills are needed.
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

META = RuleMeta(
    id="memset-traffic",
    kind="kernel",
    order=70,
    changes=("no-fills",),
)
_FILLS = re.compile(r"FillFunctor|fillBuffer|multi_tensor_apply_kernel.*Zero")


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of fills."""
    fills = (t.trace.events.kind[t.tasks.row] == Kind.MEMSET) | t.tasks_matching(_FILLS)
    tasks = np.flatnonzero(free & fills)
    rule = KernelRule(META.id, "The device spends its time filling memory", evidence=top_kernels(t, tasks))
    return kernel_finding(t, rule, tasks)
