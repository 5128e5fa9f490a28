"""The roofline: achieved against peak rate of each operator's kernels, from shapes and data sheets."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import numpy as np

from diagnose.model.arrays import Ints, Rows
from diagnose.model.events import Device
from diagnose.model.intervals import distinct, grouped
from diagnose.perf_model.gpu_specs import GpuSpec, Precision, spec_of
from diagnose.perf_model.op_cost import OpCost, cost_of, is_convolution, output_of_convolution, reads_values
from diagnose.perf_model.op_inputs import inputs
from diagnose.tables import Tables
from diagnose.tables.op_launches import OperatorInputs

# Of the peak: good libraries reach 45 to 80 % in 16-bit products, and 70 to 95 % in kernels that stream.
SLOW_KERNEL_SHARE = 0.4  # below it a kernel is slow
REACHED_SHARE = {"compute": 0.6, "memory": 0.8}  # by a good kernel
# Below this the fixed cost of starting and draining a kernel, not its work, sets its time.
MIN_RATED_NS = 20_000
LOOK_AHEAD = 3  # tasks after a convolution among which one takes its output: its bias, a norm, an activation
PRECISION_NAMES: dict[Precision, str] = {"fp32": "fp32", "tf32": "tf32", "f16": "16-bit", "fp8": "8-bit"}
_TF32 = r"(?i)tf32|xf32|s1688|tensorop_s\d+"


class Group(NamedTuple):
    """The calls of one operator with the same shapes and types that took ``MIN_RATED_NS`` or more each."""

    op: str
    shapes: str
    types: str
    kernel: str  # the name of the longest one
    tasks: Rows  # indices into Tasks
    launch: int  # row of a launch, for its place
    calls: int
    time_ns: float
    bound_ns: float  # what the device needs at its peak
    limit: Literal["compute", "memory"]
    work: OpCost  # of all calls together
    precision: Precision
    full_precision: bool  # a float32 product although the device has units for 16-bit ones: judged by another rule

    @property
    def share(self) -> float:
        """Return the achieved share of the bound, 0 to 1."""
        return min(self.bound_ns / self.time_ns, 1.0)

    def achieved(self) -> str:
        """Return the rate that was reached, as text."""
        if self.limit == "compute":
            return f"{self.work.flop / self.time_ns / 1e3:.0f} TFLOP/s"
        return f"{self.work.bytes / self.time_ns:.0f} GB/s"

    def peak(self, peak: GpuSpec) -> str:
        """Return the device's own rate, as text."""
        return (
            f"{peak.rate(self.precision) / 1e12:.0f} TFLOP/s"
            if self.limit == "compute"
            else f"{peak.bandwidth:.0f} GB/s"
        )


def device_of(t: Tables) -> Device | None:
    """Return the device that ran the tasks; where only others are listed, one of them if they are all alike."""
    for device in t.trace.devices:
        if device.id == t.device_id:
            return device
    kinds = {(d.name, d.memory_bytes, d.num_sms) for d in t.trace.devices}
    return t.trace.devices[0] if len(kinds) == 1 else None


def gpu_spec(t: Tables) -> GpuSpec | None:
    """Return the limits of the device, None where it is not in the table."""
    device = device_of(t)
    return spec_of(device) if device else None


def has_tensor_cores(t: Tables) -> bool:
    """Return whether the device has units for 16-bit products, as far as the trace shows."""
    device = device_of(t)
    # From this major version on products of 16-bit numbers have units of their own.
    return device is not None and device.compute_capability[0] >= 7


def groups(t: Tables) -> list[Group]:
    """Return the operators whose work is known with the kernels' time and bound; empty for an unknown device."""
    peak = gpu_spec(t)
    if peak is None:
        return []
    op_inputs, ops = t.operator_inputs, t.operators
    length = t.tasks.end - t.tasks.start
    chosen = np.flatnonzero((ops >= 0) & op_inputs.is_known & ~t.tasks.is_collective & ~t.tasks.is_copy)
    if not len(chosen):
        return []
    inverse = grouped(ops[chosen]).of
    chosen = chosen[np.bincount(inverse, length[chosen].astype(np.float64))[inverse] >= MIN_RATED_NS]
    code = _code(op_inputs, chosen)
    order = np.argsort(code, kind="stable")
    parts = np.split(chosen[order], np.flatnonzero(np.diff(code[order])) + 1) if len(order) else []
    found = [_group(t, op_inputs, peak, part) for part in parts]
    return sorted((group for group in found if group), key=lambda group: -group.time_ns)


def _code(op_inputs: OperatorInputs, tasks: Rows) -> Ints:
    """Return a number for each task that is the same for calls with the same work."""
    size = len(op_inputs.texts) + 1
    matters = np.zeros(size, bool)
    for name in distinct(op_inputs.name[tasks]).tolist() if len(tasks) else []:
        matters[name] = reads_values(op_inputs.texts[name])
    values = np.where(matters[op_inputs.name[tasks]], op_inputs.values[tasks], -1)
    code = np.zeros(len(tasks), np.int64)
    for column in (op_inputs.name[tasks], op_inputs.shapes[tasks], op_inputs.types[tasks], values):
        code = grouped(code * size + column + 1).of.astype(np.int64)
    return code


def _group(t: Tables, op_inputs: OperatorInputs, peak: GpuSpec, tasks: Rows) -> Group | None:
    columns = (op_inputs.name, op_inputs.shapes, op_inputs.types, op_inputs.values)
    op, shapes, types, values = (op_inputs.text(int(column[tasks[0]])) for column in columns)
    length = t.tasks.end[tasks] - t.tasks.start[tasks]
    longest = int(tasks[length.argmax()])
    kernel = t.name(int(t.tasks.row[longest]))
    each = cost_of(op, shapes, types, values, kernel) or _by_follower(t, op_inputs, int(tasks[0]), op)
    if each is None:
        return None
    calls = len(distinct(t.operators[tasks]))
    precision: Precision = (
        "tf32" if each.precision == "fp32" and each.flop and re.search(_TF32, kernel) else each.precision
    )
    rate = peak.rate(precision)
    if each.flop and not rate:
        return None
    compute_ns, memory_ns = each.flop / rate * 1e9 if each.flop else 0.0, each.bytes / peak.bandwidth
    return Group(
        op=op,
        shapes=shapes,
        types=types,
        kernel=kernel,
        tasks=tasks,
        launch=int(t.tasks.launch[longest]),
        calls=calls,
        time_ns=float(length.sum()),
        bound_ns=max(compute_ns, memory_ns) * calls,
        limit="compute" if compute_ns > memory_ns else "memory",
        work=OpCost(each.flop * calls, each.bytes * calls, precision),
        precision=precision,
        full_precision=bool(each.flop) and precision == "fp32" and has_tensor_cores(t),
    )


def _by_follower(t: Tables, op_inputs: OperatorInputs, task: int, op: str) -> OpCost | None:
    """Return the work of a convolution whose stride was not recorded, where what runs after it takes its output."""
    if not is_convolution(op):
        return None
    mine = inputs(op_inputs.text(int(op_inputs.shapes[task])), op_inputs.text(int(op_inputs.types[task])))
    window = range(task + 1, min(task + 1 + 8 * LOOK_AHEAD, len(t.operators))) if mine else ()
    own = (t.tasks.stream[task], t.operators[task])
    following = [i for i in window if t.tasks.stream[i] == own[0] and t.operators[i] != own[1]]
    for i in following[:LOOK_AHEAD]:
        theirs = inputs(op_inputs.text(int(op_inputs.shapes[i])), op_inputs.text(int(op_inputs.types[i])))
        work = output_of_convolution(mine, theirs) if mine and theirs else None
        if work is not None:
            return work
    return None
