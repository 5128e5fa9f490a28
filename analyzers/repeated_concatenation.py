"""Tensors are copied to be put one behind the other.

What it looks for
    Kernels of `torch.cat` and `torch.stack`: at least 20 % of the busy time.

Why it costs
    All parts are read and written once more. Where a tensor grows by concatenation, as a cache of keys and values does
    that takes one token at a time, the whole of it is copied for each small piece: the cost grows with the square of
    the length.

What to do
    Make the whole tensor once and write each piece into its slice; in a model's code return slices instead of parts.

How sure
    High for the time; whether the result has to be one tensor is not in the trace.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables

META = RuleMeta(
    id="repeated-concatenation",
    kind="kernel",
    order=56,
    changes=("preallocate",),
)
MIN_SHARE = 0.2  # of the busy time: skip connections of a U-Net take 3 to 10 %
_KERNELS = re.compile(r"CatArrayBatchedCopy")


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of concatenations."""
    tasks = np.flatnonzero(free & t.tasks_matching(_KERNELS))
    evidence = top_kernels(t, tasks, most=2)
    rule = KernelRule(META.id, "The device copies tensors to put them one behind the other", MIN_SHARE, 0.0, evidence)
    return kernel_finding(t, rule, tasks)
