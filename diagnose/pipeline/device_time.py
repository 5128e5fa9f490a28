"""Device time: by kernel and its kind, and against the device's peak."""

from __future__ import annotations

import json
import re
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Floats, Rows
from diagnose.model.charts import FlopUtilisation, KernelTime, Roofline, RooflinePoint
from diagnose.model.intervals import among, distinct, grouped
from diagnose.model.limits import MAJORITY
from diagnose.tables import Tables
from diagnose.tables.kernel_classes import CLASSES, OTHER
from diagnose.tables.names import NAME_PART
from diagnose.tables.op_launches import OperatorInputs
from diagnose.tables.roofline import PRECISION_NAMES, gpu_spec
from diagnose.text.kernel_names import shorten

# What the device spends its time on: its kernels, those of one name together, the most expensive first.

MIN_NAMED_SHARE = 0.02  # of the computing time: a kernel of no family that takes less is one of the others
NO_COMPUTE = frozenset({"memcpy", "memset", "collective"})  # families
_DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "Half": "float16",
    "c10::Float8_e4m3fn": "float8", "c10::Float8_e4m3fnuz": "float8", "c10::Float8_e5m2": "float8",
    "signed char": "int8", "unsigned char": "uint8", "int": "int32", "long int": "int64", "bool": "bool",
}  # fmt: skip
_OWN_OPERATOR = r"^(?!autograd::|torch::|c10d::)\w+::"
# What names of kernels show of their types; a name that shows several shows none.
_IN_NAMES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("bfloat16", re.compile(r"bf16|bfloat16|_BBS_|_B[BS]_", re.IGNORECASE)),
    ("float16", re.compile(r"(?<!b)f16|(?<![A-Za-z])(h(gemm|cudnn|884|1688|16816))|c10::Half|__half|_HHS_|_HB?_")),
    ("float8", re.compile(r"e4m3|e5m2|fp8|float8", re.IGNORECASE)),
    ("int8", re.compile(r"int8|_s8_|imma", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32|s1688|xf32", re.IGNORECASE)),
    ("float32", re.compile(r"sgemm|scudnn|simt_s|(?<![A-Za-z_])float(?![\w8])|_SB_|f32f32_f32f32_f32")),
)
# NCCL moves bytes where it adds nothing up, whatever the tensors' type is.
_MOVES_BYTES = r"(?i)nccl\w*_(SendRecv|AllGather|Broadcast)"


def kernel_times(t: Tables, most: int) -> list[tuple[KernelTime, int]]:
    """Return ``most`` kernels and for each the row of the launch of its longest call, -1 for none.

    The last entry sums what is not listed, so that the times add up to the time of all device tasks.
    """
    if t.device_id < 0 or not len(t.tasks.row):
        return []
    inverse = grouped(t.trace.events.name[t.tasks.row]).of
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    cost, whole = np.bincount(inverse, length), float(length.sum())
    if not whole:
        return []
    order = np.argsort(-cost, kind="stable")
    listed = order if len(order) <= most + 1 else order[:most]
    peak = np.full(len(length), np.nan)  # the share of the device's that the operator of each task reaches
    for group in t.roofline_groups:
        peak[group.tasks] = group.share
    found = [_kernel_time(t, np.flatnonzero(inverse == i), whole, peak) for i in listed.tolist()]
    rest = np.flatnonzero(~among(inverse, listed))
    if len(rest):
        num = len(order) - len(listed)
        time = float(length[rest].sum())
        found.append((KernelTime(f"{num} others", "", len(rest) / t.steps.num, time / t.steps.num, time / whole), -1))
    return found


def kernel_families(t: Tables) -> dict[str, float]:
    """Return the shares of the time of computing kernels, by family; a long kernel of no family by its own name."""
    if t.device_id < 0:
        return {}
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    of = t.task_classes
    cost = dict(zip(CLASSES, np.bincount(of, length, len(CLASSES)).tolist(), strict=True))
    unknown = np.flatnonzero(of == CLASSES.index(OTHER))
    names, _, inverse = grouped(t.trace.events.name[t.tasks.row[unknown]])
    whole = sum(ns for name, ns in cost.items() if name not in NO_COMPUTE)
    if not whole:
        return {}
    for name, ns in zip(names.tolist(), np.bincount(inverse, length[unknown], len(names)).tolist(), strict=True):
        if ns >= MIN_NAMED_SHARE * whole:
            short = shorten(t.trace.names[name], 30)
            cost[short] = cost.get(short, 0.0) + ns
            cost[OTHER] -= ns
    cost["unclassified kernels"] = cost.pop(OTHER)
    found = {name: ns / whole for name, ns in cost.items() if ns > 0 and name not in NO_COMPUTE}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _kernel_time(t: Tables, tasks: Rows, whole: float, peak: Floats) -> tuple[KernelTime, int]:
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    longest = int(tasks[length[tasks].argmax()])
    name = t.name(int(t.tasks.row[longest]))
    with_peak = tasks[np.isfinite(peak[tasks])]
    covered = float(length[with_peak].sum())
    share = float((peak[with_peak] * length[with_peak]).sum() / covered) if covered else None
    time = float(length[tasks].sum())
    # The type that is computed with: of the inputs, or as the name shows it; TF32 takes float32 inputs.
    of_inputs, shown = _dtype_of_inputs(t.operator_inputs, tasks, length), name[:NAME_PART]
    in_name = [dtype for dtype, pattern in _IN_NAMES if pattern.search(shown)]
    of_name = in_name[0] if len(in_name) == 1 and not re.search(_MOVES_BYTES, name) else ""
    dtype = of_name if of_inputs == "float32" and of_name == "tf32" else of_inputs or of_name
    row = KernelTime(
        name=name,
        family=CLASSES[t.task_classes[longest]],
        calls_per_step=len(tasks) / t.steps.num,
        time_ns=time / t.steps.num,
        share=time / whole,
        dtype=dtype,
        peak_share=share if covered >= MAJORITY * time else None,
    )
    launched = tasks[t.tasks.launch[tasks] >= 0]
    at = int(launched[length[launched].argmax()]) if len(launched) else -1
    return row, int(t.tasks.launch[at]) if at >= 0 else -1


def _dtype_of_inputs(known: OperatorInputs, tasks: Rows, length: npt.NDArray[np.float64]) -> str:
    """Return the type of the operators' first floating-point tensor, where most of the time has one.

    A compiled region or a function of the backward hands its inputs to many operators: they show no kernel's type.
    """
    cost: dict[str, float] = {}
    single = np.zeros(len(known.texts) + 1, bool)
    names = known.name[tasks]
    for name in distinct(names[names >= 0]).tolist():
        single[name] = re.match(_OWN_OPERATOR, known.text(name)) is not None
    types = np.where(single[names], known.types[tasks], -1)
    for text in distinct(types[types >= 0]).tolist():
        given: object = None
        with suppress(ValueError):
            given = json.loads(known.text(text))
        named = [_DTYPES[t] for t in given if isinstance(t, str) and t in _DTYPES] if isinstance(given, list) else []
        dtype = next((dtype for dtype in named if "float" in dtype), named[0] if named else "")
        cost[dtype] = cost.get(dtype, 0.0) + float(length[tasks[types == text]].sum())
    name = max(cost, key=lambda dtype: cost[dtype], default="")
    return name if name and cost[name] > MAJORITY * float(length[tasks].sum()) else ""


def flop_utilisation(t: Tables) -> FlopUtilisation | None:
    """Return how much of its peak the device reached over the steps; None where no operation could be counted."""
    peak, found = gpu_spec(t), t.roofline_groups
    flop = sum(g.work.flop for g in found)
    if peak is None or not flop:
        return None
    start, end = t.steps.window
    at_peak_ns = sum(g.work.flop / peak.rate(g.precision) * 1e9 for g in found if g.work.flop)
    work = ~(t.tasks.is_collective | t.tasks.is_copy)
    computing = float((t.tasks.end - t.tasks.start)[work].sum())
    return FlopUtilisation(
        share=flop / max(peak.rate("f16"), peak.rate("fp32")) * 1e9 / (end - start),
        own_share=at_peak_ns / (end - start),
        flop_per_step=flop / t.steps.num,
        tflops=flop / (end - start) / 1e3,
        known_share=min(1.0, sum(g.time_ns for g in found) / computing),
        device=peak.name,
    )


def roofline(t: Tables) -> Roofline | None:
    """Return the chart's points, the most expensive first; None for an unknown device or where no work is known."""
    peak, found = gpu_spec(t), t.roofline_groups
    if peak is None or not found:
        return None
    start, end = t.steps.window
    points = tuple(
        RooflinePoint(
            op=g.op,
            shapes=g.shapes,
            kernel=g.kernel,
            step_share=g.time_ns / (end - start),
            precision=PRECISION_NAMES[g.precision],
            flop_per_byte=g.work.flop / g.work.bytes if g.work.bytes else 0.0,
            tflops=g.work.flop / g.time_ns / 1e3,
            gb_per_s=g.work.bytes / g.time_ns,
            bound=g.limit,
            achieved=g.share,
        )
        # What is left out is too short to be seen in the chart.
        for g in found[:60]
    )
    rates = {name: peak.rate(precision) / 1e12 for precision, name in PRECISION_NAMES.items()}
    return Roofline(peak.name, {name: rate for name, rate in rates.items() if rate}, peak.bandwidth, points)
