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

from diagnose.analyzers.common.idle_findings import Idle, idle_finding
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, intersect, longer_than, subtract, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.collectives import collectives_of_calls
from diagnose.tables.names import HOST_COLLECTIVE

META = RuleMeta(
    id="host-collective",
    kind="idle",
    order=80,
    host_order=50,
    legend=Legend("the host waited for other processes", "#0f9aa8"),
    changes=("no-host-collective",),
    cause="host-work",
)
MIN_NS = 50_000  # shorter ones only queue work on the device


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle while the host waits for other ranks."""
    rows = t.calls(HOST_COLLECTIVE, Kind.OP, Kind.ANNOTATION, Kind.PYTHON)
    waits = longer_than(t.covering(rows), MIN_NS)
    return intersect(intersect(left, t.gaps.host_part()), waits)


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim, without a device, the same and collectives of a host backend that such calls are made of."""
    made_of = t.covering(collectives_of_calls(t))
    return union(claim(t, left), intersect(left, longer_than(subtract(made_of, t.in_ops), 1)))


def find(t: Tables) -> list[Finding]:
    """Name the idle time of collectives that the host waits for."""
    return idle_finding(t, Idle(META.id, "The training thread waits for other ranks on the host", probe="middle"))
