"""Queued kernels follow each other with a short pause.

What it looks for
    Gaps of less than 10 µs before a kernel that was already queued on the same stream.

Why it costs
    The GPU needs 1–5 µs from one kernel to the next. This adds up only if kernels are tiny.

What to do
    Launch fewer, larger kernels, or use CUDA graphs, which shorten the pause. Within a graph, compile the captured
    code.

How sure
    High.
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
    legend=Legend("the usual pause between two queued tasks"),
    changes=("fuse-kernels",),
    cause="pause",
    is_avoidable=False,
    also=("capture-step",),
    paced_by="dispatch",
)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim short device parts."""
    gaps = t.gaps
    return intersect(left, gaps.device_part(np.asarray((gaps.end - gaps.queued_at) < gaps.latency_ns)))


def find(t: Tables) -> list[Finding]:
    """Name the idle time between queued kernels; between the nodes of graphs, if they begin after most of it."""
    rows, nodes = t.causes.of(META.id), t.graph_nodes
    after, length = t.gaps.after[t.causes.gap[rows]], (t.causes.end - t.causes.start)[rows]
    of_graph = np.append(nodes, False)[after]  # the last place takes the -1 of no task
    in_graph = bool(2 * length[of_graph].sum() > length.sum())
    title = "Pauses between queued kernels add up"
    took = (t.tasks.end - t.tasks.start)[nodes]
    texts = []
    if in_graph:
        title = "Pauses between the nodes of CUDA graphs add up"
        texts = [
            f"{plural(len(took) / t.steps.num, 'node')} of graphs a step; {percent((took < 5_000).mean(), 0)} of them "
            "take less than 5 µs, as long as a pause or two."
        ]
    rule = IdleRule(META.id, title, evidence=texts, facts={"in_graph": in_graph})
    return idle_finding(t, rule)
