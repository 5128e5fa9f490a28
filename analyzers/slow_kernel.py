"""Heavy kernels run far below what the GPU can do.

What it looks for
    Products, attention, pointwise operators, softmax and layer norm below 40% of the GPU's peak. Threshold: 10% of GPU
    busy time, in kernels of 20 µs or more.

Why it costs
    Good libraries reach 60% of the peak rate and 80% of the bandwidth.

What to do
    Try `torch.compile(model, mode="max-autotune")`, another attention backend, or other sizes: multiples of 64, larger
    batches.

How sure
    Medium: the saving is an estimate. Needs recorded shapes. Unknown GPUs are not checked.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.analyzers.common.advice import Advice, identical, rounding
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.roofline import REACHED_SHARE, SLOW_KERNEL_SHARE, gpu_spec
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
ADVICE = (
    Advice(
        id="autotune-kernels",
        title="Autotune the kernels",
        numerics=rounding("other kernels round differently; compare the loss of the first steps"),
        before="model = Model().cuda()",
        after='model = torch.compile(Model().cuda(), mode="max-autotune")',
        needs="minutes of compiling at the first step",
        when=lambda f, p: not (f.facts.get("attention") or p.server),  # a server chooses its kernels itself
        remedy="diagnose.kernels.compiling",
    ),
    Advice(
        id="profile-kernel",
        title="Look into the kernel with Nsight Compute",
        numerics=identical(),
        before="",
        after="""ncu --kernel-name regex:'{kernel_pattern}' --launch-skip 20 --launch-count 1 \\
    --section SpeedOfLight --section MemoryWorkloadAnalysis --section Occupancy \\
    --section WarpStateStats --section SourceCounters -o kernel \\
    python {script}
# SpeedOfLight: whether memory or arithmetic is near its limit; WarpStateStats: what warps wait for;
# Occupancy: whether registers or shared memory keep blocks out""",
        needs="Nsight Compute, and permission to read performance counters",
        watch="Each section replays the kernel: the run takes long.",
        when=lambda f, p: f.facts.get("kernel") and p.vendor != "AMD",
        most=0.0,
    ),
)


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of heavy kernels above what good ones need, but for those that other rules count."""
    peak, taken = gpu_spec(t), ~free
    for attention in t.attention:
        taken[attention.products] = taken[attention.between] = True
    for chain in t.chains:
        taken[chain.tasks] = True
    slow = [
        g
        for g in t.roofline_groups
        if g.share < SLOW_KERNEL_SHARE and not g.full_precision and not taken[g.tasks].any()
    ]
    if peak is None or not slow:
        return []
    reached = sum(g.bound_ns for g in slow) / sum(g.time_ns for g in slow)
    # The kernel's name without its arguments, as ncu matches it.
    kernel = slow[0].kernel
    bare = re.split(r"[<(]", kernel.removeprefix("void "), maxsplit=1)[0].rpartition("::")[2] or kernel
    pattern = re.sub(r"[^\w]+", ".*", bare)[:60]
    rule = KernelRule(
        META.id,
        f"Heavy kernels run at {percent(reached, 0)} of what the device can do",
        min_share=0.1,
        kept_ns=sum(g.bound_ns / REACHED_SHARE[g.limit] for g in slow),
        evidence=(
            f"Rates are held against the {peak.source} ({peak.name}).",
            *(
                f"{g.op} {g.shapes}: {g.achieved()} of {g.peak(peak)}, {duration(g.time_ns / t.steps.num)} a step in "
                f"{g.kernel[:80]}."
                for g in slow[:3]
            ),
        ),
        confidence="medium",
        facts={
            "attention": "attention" in slow[0].op,
            "kernel": slow[0].kernel,
            "kernel_pattern": pattern,
        },
    )
    return kernel_finding(t, rule, np.concatenate([g.tasks for g in slow]))
