"""Kernels, or without a device operators, compute in float64, where float32 would do.

What it looks for
    Kernels whose names have float64 as their only floating-point type, matrix products and pointwise ones: together at
    least 10 % of the busy time. Without a device: operators whose inputs have it as theirs, at least 10 % of the step.

Why it costs
    Each value takes twice the bytes. Most GPUs compute float64 at half the rate of float32, many at 1/32 or 1/64, and
    tensor cores for it exist on few. A CPU computes half as many numbers at a time.

What to do
    Convert where the data enter: NumPy's arrays are float64 unless they are told otherwise, and so are numbers made of
    Python lists by NumPy. Then the model needs no `.double()`.

How sure
    High that float64 is computed. Whether float32 suffices only the script's author knows: simulations and
    solvers may need it. What is lost is half of the time, the least that half of the bytes save.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleGaps, IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.kernel_findings import KernelRule, busy_part, kernel_finding, top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals, total
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.double_operators import SAVED, double_operators
from diagnose.text.numbers import duration
from diagnose.text.patterns import lazy_pattern

META = RuleMeta(
    id="double-precision",
    kind="kernel",
    order=25,
    host_order=79,
    legend=Legend("operators computed in float64", "#5b7f2b"),
    changes=("single-precision",),
    host_needs=("shapes",),
    without_dataflow=True,
)
MIN_BUSY_SHARE = 0.1  # of the busy time, as for other rules of a busy device; without one of the step
_DOUBLE = lazy_pattern(r"dgemm|d884gemm|dgemv|Cijk_\w+_DB_|f64f64|_f64_|[<, ]double[>,]")
_OTHERS = lazy_pattern(r"float|half|bfloat|Half|BFloat|complex|sgemm|hgemm|f32|f16|bf16|int8")


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim the half of the operators' time that half of the bytes save."""
    return worth_claiming(t, left, double_operators(t), MIN_BUSY_SHARE * SAVED)


def find(t: Tables, free: Mask | None = None) -> list[Finding]:
    """Name the time of float64 kernels or operators beyond what half of their bytes need."""
    if free is None:
        return idle_finding(t, IdleRule(META.id, "Operators compute in float64", probe="middle", evidence=_texts))
    tasks = np.flatnonzero(t.tasks_matching(_DOUBLE) & ~t.tasks_matching(_OTHERS) & free)
    rule = KernelRule(
        META.id,
        "Kernels compute in float64",
        MIN_BUSY_SHARE,
        kept_ns=(1 - SAVED) * busy_part(t, tasks),
        evidence=top_kernels(t, tasks) if len(tasks) else [],
    )
    return kernel_finding(t, rule, tasks)


def _texts(t: Tables, _gaps: IdleGaps) -> list[str]:
    took = duration(total(double_operators(t)) / SAVED / t.steps.num)
    return [f"Operators whose inputs are float64 take {took} of the step."]
