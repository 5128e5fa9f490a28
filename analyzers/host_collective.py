"""The host waits for other ranks, and the device has nothing to do meanwhile.

What it looks for
    Idle inside barriers, object collectives, store look-ups, collectives of the gloo backend or `Work.wait` on a
    thread that drives the device.

Why it costs
    The launching thread stands until the slowest rank arrives, so its own queue runs dry.

What to do
    Remove barriers from the loop, exchange Python objects rarely, and keep reductions on the device (NCCL), which
    only queue.

How sure
    High where the operator names itself a barrier or an object collective.
"""

from __future__ import annotations

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, thread_of
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals, intersect, longer_than, subtract, total, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.collectives import collectives_of_calls, host_exchanges

META = RuleMeta(
    id="host-collective",
    kind="idle",
    order=80,
    host_order=50,
    legend=Legend(
        "the host waited for other processes",
        "#0f9aa8",
        heading="Communication-bound",
        meaning="the process waits for collectives that run on the CPU",
    ),
    changes=("device-backend", "no-host-collective"),
    cause="host-work",
    awaits_ranks=True,
)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle while the host waits for other ranks."""
    return intersect(intersect(left, t.gaps.host_part()), host_exchanges(t))


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim, without a device, the same and collectives of a host backend that such calls are made of."""
    made_of = t.covering(collectives_of_calls(t))
    return union(claim(t, left), intersect(left, longer_than(subtract(made_of, t.in_ops), 1)))


def find(t: Tables) -> list[Finding]:
    """Name the idle time of collectives that the host waits for."""
    rows = t.causes.of(META.id)
    waits = Intervals(t.causes.start[rows], t.causes.end[rows])
    own = intersect(waits, t.host_backend) if t.device_id >= 0 else EMPTY
    facts = {"of_host_backend": 2 * total(own) > total(waits)}
    title = f"The {thread_of(t)} waits for other ranks on the host"
    if facts["of_host_backend"]:
        title = f"The {thread_of(t)} waits while collectives run on the CPU"
    return idle_finding(t, IdleRule(META.id, title, probe="middle", facts=facts))
