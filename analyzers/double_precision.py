"""Kernels compute in float64, where float32 would do.

What it looks for
    Kernels whose names have float64 as their only floating-point type, matrix products and pointwise ones: together at
    least 10 % of the busy time.

Why it costs
    Each value takes twice the bytes. Most GPUs compute float64 at half the rate of float32, many at 1/32 or 1/64, and
    tensor cores for it exist on few.

What to do
    Convert where the data enter: NumPy's arrays are float64 unless they are told otherwise, and so are numbers made of
    Python lists by NumPy. Then the model needs no `.double()`.

How sure
    High that the kernels compute float64. Whether float32 suffices only the script's author knows: simulations and
    solvers may need it. What is lost is half of the time, the least that half of the bytes save.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.analyzers.common.kernel_findings import KernelRule, busy_part, kernel_finding, top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables

META = RuleMeta(
    id="double-precision",
    kind="kernel",
    order=25,
    changes=("single-precision",),
)
MIN_SHARE = 0.1  # of the busy time, as for other rules of a busy device
KEPT = 0.5  # of the time, with half of the bytes
_DOUBLE = re.compile(r"dgemm|d884gemm|dgemv|Cijk_\w+_DB_|f64f64|_f64_|[<, ]double[>,]")
_OTHERS = re.compile(r"float|half|bfloat|Half|BFloat|complex|sgemm|hgemm|f32|f16|bf16|int8")


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of float64 kernels beyond what half of their bytes need."""
    tasks = np.flatnonzero(t.tasks_matching(_DOUBLE) & ~t.tasks_matching(_OTHERS) & free)
    rule = KernelRule(
        META.id,
        "Kernels compute in float64",
        MIN_SHARE,
        kept_ns=KEPT * busy_part(t, tasks),
        evidence=top_kernels(t, tasks) if len(tasks) else [],
    )
    return kernel_finding(t, rule, tasks)
