"""Heavy kernels run far below what the device can do.

What it looks for
    Operators whose work follows from their shapes (products, attention, pointwise operators, softmax, layer norm),
    and whose kernels of 20 µs or more reach less than 40 % of the device's peak rate or bandwidth: together at least
    10 % of the busy time.

Why it costs
    The same work takes less than half the time in a kernel that fits its shape: good libraries reach 60 % of the peak
    rate in large products and 80 % of the bandwidth.

What to do
    Let a search pick the kernel (max-autotune), try another attention backend, or change the shape: sizes that are
    multiples of 64, larger batches.

How sure
    Medium: the time is measured and the work follows from the shapes, but no shape reaches the peak, and what is
    lost against a good kernel is an estimate. A device that is not in the table, and operators
    without recorded shapes, are left out. Float32 products on tensor-core devices are left to full-precision-matmul,
    written-out attention and runs of pointwise operators to their own rules.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.common.extent import of_whole
from diagnose.analyzers.common.kernel_findings import busy_part
from diagnose.analyzers.common.locate import locate_one
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.intervals import total
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.roofline import REACHED_SHARE, SLOW_KERNEL_SHARE, Group, gpu_spec
from diagnose.text.numbers import duration, percent

META = RuleMeta(
    id="slow-kernel",
    kind="kernel",
    order=120,
    is_avoidable=False,
    changes=("other-attention", "autotune-kernels"),
    needs=("shapes", "peak rates of the device"),
    also=("profile-kernel",),
)
MIN_BUSY_SHARE = 0.1  # of the busy time, as for other rules of a busy device
MAX_SHOWN = 3


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of heavy kernels above what good ones need."""
    peak = gpu_spec(t)
    taken = _of_other_rules(t, free)
    slow = [
        group
        for group in t.roofline_groups
        if group.share < SLOW_KERNEL_SHARE and not group.full_precision and not taken[group.tasks].any()
    ]
    if peak is None or not slow:
        return []
    tasks = np.concatenate([group.tasks for group in slow])
    time = busy_part(t, tasks)
    if time < MIN_BUSY_SHARE * total(t.occupancy.busy):
        return []
    needed = sum(group.bound_ns / REACHED_SHARE[group.limit] for group in slow) / sum(group.time_ns for group in slow)
    length = (t.tasks.end - t.tasks.start)[tasks]
    return [
        Finding(
            rule=META.id,
            title=f"Heavy kernels run at {percent(sum(g.bound_ns for g in slow) / sum(g.time_ns for g in slow), 0)} of "
            "what the device can do",
            lost_ns=time * (1 - needed) / t.steps.num,
            count=len(tasks),
            total_ns=time,
            median_ns=int(np.median(length)),
            tasks=tasks,
            evidence=(
                f"They take {duration(time / t.steps.num)} {of_whole(t)}, {percent(time / total(t.occupancy.busy), 0)} "
                f"of the busy time; rates are held against the {peak.source} ({peak.name}).",
                *(
                    f"{g.op} {g.shapes}: {g.achieved()} of {g.peak(peak)}, {duration(g.time_ns / t.steps.num)} a "
                    f"step in {g.kernel[:80]}."
                    for g in slow[:MAX_SHOWN]
                ),
            ),
            where=tuple(dict.fromkeys(_where(t, group) for group in slow[:MAX_SHOWN])),
            confidence="medium",
            facts={"attention": "attention" in slow[0].op, "kernel": slow[0].kernel},
        )
    ]


def _of_other_rules(t: Tables, free: Mask) -> npt.NDArray[np.bool_]:
    """Return which tasks are counted elsewhere: by rules asked before, in written-out attention, in pointwise runs."""
    taken = ~free
    for attention in t.attention:
        taken[attention.products] = taken[attention.between] = True
    for chain in t.chains:
        taken[chain.tasks] = True
    return taken


def _where(t: Tables, group: Group) -> Where:
    row = group.launch
    return replace(locate_one(t, int(t.trace.events.thread[row]), int(t.trace.events.start[row])), stack=())
