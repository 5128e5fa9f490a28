"""The link between CPU and GPU is the limit.

What it looks for
    Copies at 60% or more of the link's rate that take longer than the rest of the step.

Why it costs
    The step cannot be shorter than its copies, even with perfect overlap.

What to do
    Send less: bytes instead of floats, with decoding and augmentation on the GPU. Keep reused data on the GPU.

How sure
    High. Unknown GPUs are not checked.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.advice import Advice, rounding
from diagnose.analyzers.common.kernel_findings import busy_part
from diagnose.model.diagnosis import Finding
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.names import AnyCase
from diagnose.tables.roofline import gpu_spec
from diagnose.text.numbers import duration

META = RuleMeta(
    id="pcie-bound",
    kind="state",
    order=10,
    changes=("send-less",),
)
ADVICE = (
    Advice(
        id="send-less",
        title="Send bytes and convert on the device",
        numerics=rounding("the conversion rounds on the device"),
        before="images = images.float().div(255).to(device)",
        after="images = images.to(device, non_blocking=True).float().div(255)  # uint8 over the link: a quarter",
        needs="inputs that are bytes at first, such as images",
        most=0.0,  # whether they were bytes at first no recording shows
    ),
)


_HOST = AnyCase(r"htod|dtoh|hosttodevice|devicetohost")


def find(t: Tables) -> list[Finding]:
    """Name the time by which the copies are longer than the rest of the step."""
    peak = gpu_spec(t)
    tasks = np.flatnonzero(t.tasks.is_copy & t.tasks_matching(_HOST)) if peak and peak.pcie else np.zeros(0, np.intp)
    events = t.trace.events
    tasks = tasks[events.size[t.tasks.row[tasks]] > 0]
    if peak is None or not len(tasks):
        return []
    moved = int(events.size[t.tasks.row[tasks]].sum())
    took = busy_part(t, tasks)
    rate = moved / max(took, 1)
    other = np.flatnonzero(~t.tasks.is_copy)
    rest = busy_part(t, other)
    if (
        rate < 0.6 * peak.pcie or took <= rest
    ):  # pinned copies reach 80 to 90 % of the link's rate, pageable ones a third
        return []
    return [
        Finding(
            rule=META.id,
            title="Copies fill the link to the host for longer than the rest of the step takes",
            lost_ns=(took - rest) / t.steps.num,
            count=len(tasks),
            total_ns=took - rest,
            median_ns=int(np.median((t.tasks.end - t.tasks.start)[tasks])),
            evidence=(
                f"{moved / t.steps.num / 1e6:.1f} MB per step at {rate:.1f} GB/s of {peak.pcie:.1f} GB/s "
                f"({peak.source}): {duration(took / t.steps.num)} of copies, {duration(rest / t.steps.num)} of "
                "kernels.",
            ),
        )
    ]
