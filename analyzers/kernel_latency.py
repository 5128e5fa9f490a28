"""Queued kernels follow each other with a short pause.

What it looks for
    Idle of under 10 µs, or 1.5 times the launch latency of the machine where that is longer, before a task that was
    already queued on the same stream.

Why it costs
    The device needs about 1 to 5 µs from one kernel to the next. It adds up only when kernels are tiny.

What to do
    Fewer, larger kernels; CUDA graphs shorten the pause. Within a graph: compile what it captures.

How sure
    High: the launch was there before the gap began.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.text.numbers import percent, plural

META = RuleMeta(
    id="kernel-latency",
    kind="idle",
    order=170,
    legend=Legend("the usual pause between two queued tasks", "#a48ee6"),
    changes=("fuse-kernels",),
    cause="pause",
    is_avoidable=False,
    also=("capture-step",),
    paced_by="dispatch",
)


MIN_IN_GRAPHS = 0.5  # of the pauses' time
TINY_NS = 5_000


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim short device parts."""
    gaps = t.gaps
    short = (gaps.end - gaps.queued_at) < gaps.latency_ns
    return intersect(left, gaps.device_part(np.asarray(short)))


def find(t: Tables) -> list[Finding]:
    """Name the idle time between queued kernels."""
    share = _share_in_graphs(t)
    in_graph = share > MIN_IN_GRAPHS
    title = "Pauses between queued kernels add up"
    if in_graph:
        title = "Pauses between the nodes of CUDA graphs add up"
    rule = IdleRule(META.id, title, evidence=lambda t, _o: _nodes(t) if in_graph else [], facts={"in_graph": in_graph})
    return idle_finding(t, rule)


def _share_in_graphs(t: Tables) -> float:
    """Return the share of the pauses, by time, behind which a node of a graph begins."""
    rows = t.causes.of(META.id)
    after, length = t.gaps.after[t.causes.gap[rows]], (t.causes.end - t.causes.start)[rows]
    of_graph = np.append(t.graph_nodes, False)[after]  # the last place takes the -1 of no task
    return float(length[of_graph].sum() / max(int(length.sum()), 1))


def _nodes(t: Tables) -> list[str]:
    """Return how many nodes there are, and how many of them take hardly longer than a pause."""
    nodes = t.graph_nodes
    length = (t.tasks.end - t.tasks.start)[nodes]
    tiny = int((length < TINY_NS).sum()) / max(len(length), 1)
    return [
        f"{plural(len(length) / t.steps.num, 'node')} of graphs a step; {percent(tiny, 0)} of them take less than "
        f"{TINY_NS / 1000:.0f} µs, as long as a pause or two."
    ]
