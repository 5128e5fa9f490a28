"""How near each operator's kernels come to what the device can do: the roofline, from shapes and data sheets."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.devices import Peak, Precision, peak_of
from diagnose.intervals import distinct, intersect, total, union
from diagnose.tables import Tables
from diagnose.trace import Device, Ints, Kind
from diagnose.work import Work, work_of

__all__ = ["MIN_NS", "TENSOR_CORES", "Group", "busy_part", "device_of", "device_peak", "groups", "operators"]

# Below this the fixed cost of starting and draining a kernel, not its work, sets its time.
MIN_NS = 20_000
# Float32 products are judged on devices without tensor cores only: on others the rule full-precision-matmul speaks.
TENSOR_CORES = 7
_TF32 = re.compile(r"tf32|xf32|s1688|tensorop_s\d+", re.IGNORECASE)


class Group(NamedTuple):
    """The calls of one operator with the same shapes and types that took ``MIN_NS`` or more on the device each."""

    op: str
    shapes: str
    kernel: str  # the name of the longest one
    tasks: npt.NDArray[np.intp]  # indices into Tasks
    launch: int  # row of a launch, for its place
    calls: int
    time_ns: float
    bound_ns: float  # what the device needs at its peak
    limit: Literal["compute", "memory"]
    work: Work  # of all calls together
    precision: Precision

    @property
    def share(self) -> float:
        """Return how near the kernels come to the bound, 0 to 1."""
        return min(self.bound_ns / self.time_ns, 1.0)

    def achieved(self) -> str:
        """Say what rate was reached."""
        if self.limit == "compute":
            return f"{self.work.flop / self.time_ns / 1e3:.0f} TFLOP/s"
        return f"{self.work.bytes / self.time_ns:.0f} GB/s"

    def peak(self, peak: Peak) -> str:
        """Say the device's own rate."""
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


def device_peak(t: Tables) -> Peak | None:
    """Return the limits of the device, None where it is not in the table."""
    device = device_of(t)
    return peak_of(device) if device else None


def operators(t: Tables) -> npt.NDArray[np.intp]:
    """Return for each task the innermost operator that launched it, -1 where none is known."""
    return t.once("launching operators", lambda: _operators(t))


def _operators(t: Tables) -> npt.NDArray[np.intp]:
    events = t.trace.events
    found = np.full(len(t.tasks.row), -1, np.intp)
    launch = t.tasks.launch
    for thread, layers in t.work_layers.items():
        mine = np.flatnonzero((launch >= 0) & (events.thread[np.maximum(launch, 0)] == thread))
        time: Ints = events.start[launch[mine]]
        for depth in range(len(layers.rows)):
            rows = layers.open_in(depth, time)
            is_op = (rows >= 0) & (events.kind[np.maximum(rows, 0)] == Kind.OP)
            found[mine[is_op]] = rows[is_op]
    return found


def groups(t: Tables) -> list[Group]:
    """Return the operators whose work is known with the kernels' time and bound; empty for an unknown device."""
    return t.once("roofline", lambda: _groups(t))


def _groups(t: Tables) -> list[Group]:
    peak = device_peak(t)
    if peak is None:
        return []
    events = t.trace.events
    ops = operators(t)
    length = t.tasks.end - t.tasks.start
    asked = np.flatnonzero((ops >= 0) & ~t.tasks.is_collective & ~t.tasks.is_copy)
    asked = asked[(events.shapes[ops[asked]] >= 0) & (events.types[ops[asked]] >= 0)]
    if not len(asked):
        return []
    _, inverse = np.unique(ops[asked], return_inverse=True)
    asked = asked[np.bincount(inverse, length[asked].astype(np.float64))[inverse] >= MIN_NS]
    code = events.name[ops[asked]].astype(np.int64)
    for column in (events.shapes, events.types):
        code = code * len(t.trace.names) + column[ops[asked]]
    order = np.argsort(code, kind="stable")
    parts = np.split(asked[order], np.flatnonzero(np.diff(code[order])) + 1) if len(order) else []
    found = [_group(t, peak, int(ops[part[0]]), part) for part in parts]
    return sorted((group for group in found if group), key=lambda group: -group.time_ns)


def _group(t: Tables, peak: Peak, first: int, tasks: npt.NDArray[np.intp]) -> Group | None:
    events = t.trace.events
    op, shapes, types = (t.trace.names[int(column[first])] for column in (events.name, events.shapes, events.types))
    each = work_of(op, shapes, types)
    if each is None:
        return None
    calls = len(distinct(operators(t)[tasks]))
    length = t.tasks.end[tasks] - t.tasks.start[tasks]
    longest = int(tasks[length.argmax()])
    kernel = t.name(int(t.tasks.row[longest]))
    precision: Precision = "tf32" if each.precision == "fp32" and each.flop and _TF32.search(kernel) else each.precision
    rate = peak.rate(precision)
    if each.flop and (not rate or (precision == "fp32" and _has_tensor_cores(t))):
        return None
    compute_ns, memory_ns = each.flop / rate * 1e9 if each.flop else 0.0, each.bytes / peak.bandwidth
    return Group(
        op=op,
        shapes=shapes,
        kernel=kernel,
        tasks=tasks,
        launch=int(t.tasks.launch[longest]),
        calls=calls,
        time_ns=float(length.sum()),
        bound_ns=max(compute_ns, memory_ns) * calls,
        limit="compute" if compute_ns > memory_ns else "memory",
        work=Work(each.flop * calls, each.bytes * calls, precision),
        precision=precision,
    )


def _has_tensor_cores(t: Tables) -> bool:
    device = device_of(t)
    return device is not None and device.compute_capability[0] >= TENSOR_CORES


def busy_part(t: Tables, tasks: npt.NDArray[np.intp]) -> int:
    """Return for how long (ns over the window) one of the tasks ran; tasks side by side count once."""
    return total(intersect(union((t.tasks.start[tasks], t.tasks.end[tasks])), t.occupancy.busy))
