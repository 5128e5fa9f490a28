"""The heavy kernels already run near what the GPU can do.

What it looks for
    Operators that take 60% of GPU busy time and together reach 60% of the peak rate or bandwidth.

Why it costs
    It costs nothing: this finding marks work with little to gain.

What to do
    Do less work: fewer bytes or operations, a narrower type, a faster GPU.

How sure
    High. Needs recorded shapes. Unknown GPUs are not checked.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.kernel_findings import busy_part
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import total
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.roofline import REACHED_SHARE, gpu_spec
from diagnose.tables.thresholds import THRESHOLDS
from diagnose.text.numbers import percent

META = RuleMeta(
    id="at-roofline",
    kind="state",
    order=25,
    needs=("shapes", "peak rates of the device"),
)


def find(t: Tables) -> list[Finding]:
    """State that the kernels are good where they are."""
    peak, known = gpu_spec(t), [group for group in t.roofline_groups if not group.full_precision]
    if peak is None or not known or t.queue.idle_share > THRESHOLDS.significant_idle:
        return []
    tasks = np.concatenate([group.tasks for group in known])
    time = busy_part(t, tasks)
    near = sum(group.share * group.time_ns for group in known) / sum(group.time_ns for group in known)
    if time < 0.6 * total(t.occupancy.busy) or near < REACHED_SHARE["compute"]:
        return []
    return [
        Finding(
            rule=META.id,
            title=f"The heavy kernels run at {percent(near, 0)} of what the device can do: little to gain there",
            lost_ns=0.0,
            count=len(tasks),
            total_ns=time,
            median_ns=int(np.median((t.tasks.end - t.tasks.start)[tasks])),
            evidence=(
                f"Operators whose work is known take {percent(time / total(t.occupancy.busy), 0)} of the busy time; "
                f"rates are held against the {peak.source} ({peak.name}).",
                *(f"{g.op} {g.shapes}: {g.achieved()} of {g.peak(peak)}." for g in known[:3]),
            ),
            confidence="high",
        )
    ]
