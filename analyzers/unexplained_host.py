"""The CPU launched nothing, and the trace does not show why.

What it looks for
    Idle time in which no launching thread has an event, a Python frame or a sample.

Why it costs
    The GPU waits for a CPU whose work was not recorded.

What to do
    Record with `diagnose trace`. Its sampler shows the line that the training thread executes.

How sure
    High for the idle time.
"""

from __future__ import annotations

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals, subtract
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables

META = RuleMeta(
    id="unexplained-host",
    kind="idle",
    order=1000,
    host_order=120,
    legend=Legend("cause not recorded", "#98a1ae"),
    fallback=True,
    explains=False,
    cause="host-work",
    paced_by="host",
)


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim, without a device, what lies between the operators of a program that runs no Python."""
    return subtract(left, t.in_ops) if t.runs_no_python else EMPTY


def find(t: Tables) -> list[Finding]:
    """State how much idle has no visible cause on the host."""
    title = "The host launches nothing, for a reason the trace does not show"
    if t.device_id < 0:
        title = "The program runs code between its operators that the recording does not show"
    else:
        rows = t.causes.of(META.id)
        length, gap = (t.causes.end - t.causes.start)[rows], t.causes.gap[rows]
        unknown = (t.gaps.launch[gap] < 0) & (t.gaps.after[gap] >= 0)  # the launch of the next task is not in the file
        if 2 * length[unknown].sum() > length.sum():
            title = "The device is idle, and the file holds no launch that shows why"
    return idle_finding(t, IdleRule(META.id, title, probe="middle", confidence="low"))
