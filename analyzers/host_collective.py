"""The CPU waits for other ranks while the GPU is idle.

What it looks for
    Idle time in barriers, object collectives, store lookups, gloo collectives or `Work.wait`.

Why it costs
    The launching thread waits for the slowest rank, so the GPU runs out of work.

What to do
    Remove barriers from the loop. Exchange Python objects rarely. Reduce on the GPU with the NCCL backend.

How sure
    High if the operator is a barrier or an object collective.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.advice import Advice, identical, rounding
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, thread_of
from diagnose.model.arrays import Rows
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, covered, distinct, intersect, longer_than, subtract, total, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.collectives import _HOST_COLLECTIVE, host_exchanges
from diagnose.tables.names import HOST_COLLECTIVE, matching

META = RuleMeta(
    id="host-collective",
    kind="idle",
    order=80,
    host_order=50,
    legend=Legend(
        "the host waited for other processes",
        heading="Communication-bound",
        meaning="the process waits for collectives that run on the CPU",
    ),
    changes=("device-backend", "no-host-collective"),
    cause="host-work",
    awaits_ranks=True,
)
ADVICE = (
    Advice(
        id="device-backend",
        title="Use the NCCL backend instead of gloo",
        numerics=rounding("sums are taken in another order"),
        before='dist.init_process_group("gloo")',
        after='dist.init_process_group("nccl")   # reduces on the devices; gloo copies every gradient to the host',
        needs="a device for each rank",
        when=lambda f, _: f.facts.get("of_host_backend"),
        least=0.4,
    ),
    Advice(
        id="no-host-collective",
        title="Take the barrier or object collective out of the loop",
        numerics=identical(),
        before="dist.barrier()                       # every step",
        after="""if step % 100 == 0:                  # only when ranks must meet, such as before a checkpoint
    dist.barrier()
# numbers to log: reduce a tensor on the device without waiting
work = dist.all_reduce(value, async_op=True)
work.wait()   # later, before the value is read: only the device waits""",
        needs="nothing that relies on all ranks being at the same step",
        when=lambda f, _: not f.facts.get("of_host_backend"),
        least=0.6,
    ),
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
    waits = t.causes.pieces(META.id)
    own = intersect(waits, t.host_backend) if t.device_id >= 0 else EMPTY
    facts = {"of_host_backend": 2 * total(own) > total(waits)}
    title = f"The {thread_of(t)} waits for other ranks on the host"
    if facts["of_host_backend"]:
        title = f"The {thread_of(t)} waits while collectives run on the CPU"
    return idle_finding(t, IdleRule(META.id, title, probe="middle", facts=facts))


def collectives_of_calls(t: Tables) -> Rows:
    """Return the rows of host collectives that are parts of a barrier or an object collective, on any thread.

    The timing window shows only that, say, an all-gather ran. The attribution window has the Python frames: a kind of
    collective that runs mostly inside `barrier` or `all_gather_object` there is taken for such a part here too.
    """
    trace = t.capture.attribution or t.trace
    events = trace.events
    calls = matching(trace, (Kind.PYTHON, Kind.OP), HOST_COLLECTIVE)
    rows = matching(trace, (Kind.ANNOTATION, Kind.OP), _HOST_COLLECTIVE)
    inside = covered(union((events.start[calls], events.end[calls])), events.start[rows], events.end[rows])
    length, names = events.end[rows] - events.start[rows], events.name[rows]
    kinds = {
        trace.names[name]
        for name in distinct(names).tolist()
        if 2 * inside[names == name].sum() > length[names == name].sum()
    }
    rows = t.in_window(matching(t.trace, (Kind.ANNOTATION, Kind.OP), _HOST_COLLECTIVE))
    return np.array([row for row in rows.tolist() if t.name(row) in kinds], np.intp)
