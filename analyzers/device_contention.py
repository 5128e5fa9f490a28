"""Another process uses the same GPU.

What it looks for
    Gaps of 10 µs or more before a queued kernel, while NVML shows another process on the GPU.

Why it costs
    The GPU switches between processes in time slices.

What to do
    Run on a GPU that no other process uses.

How sure
    Medium: the process was seen, its kernels were not. Needs `diagnose trace`.
"""

from __future__ import annotations

from dataclasses import replace

from diagnose.analyzers.common.advice import Advice, identical
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.nvml_readings import other_processes

META = RuleMeta(
    id="device-contention",
    kind="idle",
    order=180,
    legend=Legend("a queued task found no room on the device"),
    changes=("own-device",),
    needs=("NVML samples",),
)
_FREE = Advice(
    id="own-device",
    title="Run on a device that no other process uses",
    numerics=identical(),
    before="python {script}",
    after="nvidia-smi --query-compute-apps=pid,gpu_uuid,used_memory --format=csv\n"
    "CUDA_VISIBLE_DEVICES=1 python {script}   # one that no other process uses",
    when=lambda _, p: p.vendor != "AMD",
)
ADVICE = (
    _FREE,
    replace(
        _FREE,
        after="rocm-smi --showpids\nHIP_VISIBLE_DEVICES=1 python {script}   # one that no other process uses",
        when=lambda _, p: p.vendor == "AMD",
    ),
)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim what is left of the device's parts where another process was seen."""
    return intersect(left, t.gaps.device_part()) if other_processes(t) else EMPTY


def find(t: Tables) -> list[Finding]:
    """Name the idle time that another process may have taken."""
    text = f"{len(other_processes(t))} other process(es) were seen on the device while the steps ran."
    title = "Another process shares the device"
    return idle_finding(t, IdleRule(META.id, title, confidence="medium", evidence=[text]))
