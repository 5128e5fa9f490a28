"""Memory is filled with zeros, or another number, over and over.

What it looks for
    Fills on the device, by `cudaMemset` or by the kernels of `fill_` and `zero_`: at least 5 % of the busy time.

Why it costs
    A fill writes the whole tensor. Gradients that are set to zero are then read and added to, where without it they
    would be written once.

What to do
    `zero_grad(set_to_none=True)`, which has been the default since torch 2.0; `torch.empty` where all is written
    anyway; buffers made once and kept.

How sure
    High for the time. Whether a fill is needed is not in the trace, and fills of libraries for their own workspace
    stay.
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
