"""The backward pass goes back through earlier steps.

What it looks for
    Functions of the backward pass whose forward ran before the step began, by autograd's sequence numbers, in half of
    the steps or more, that take 2 % of the step.

Why it costs
    A value of an earlier step that is still part of its graph leads the backward pass through that step again: a hidden
    state, a loss that is summed up, or what is computed once before the loop. `retain_graph=True` keeps such a graph,
    and its memory.

What to do
    `detach()` what one step hands to the next, or compute it again in each step if its gradient is wanted.

How sure
    High: a number below that of the step's first operator is of an earlier step. The line is that of the forward.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals, intersect, total
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.kept_graph import kept_graph

META = RuleMeta(
    id="kept-graph",
    kind="idle",
    order=124,
    host_order=88,
    legend=Legend("the backward pass went through earlier steps", "#a8652f"),
    changes=("detach-state",),
    needs=("a second step",),
)
MIN_SHARE = 0.02  # of the busy time, or of the step
TITLE = "The backward pass goes back through earlier steps"


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle while the host issues the backward pass of earlier steps."""
    return intersect(claim_host(t, left), t.gaps.host_part())


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim the backward pass of earlier steps."""
    found = kept_graph(t)
    least = MIN_SHARE * (t.steps.window[1] - t.steps.window[0])
    return EMPTY if found is None or total(found.host) < least else intersect(left, found.host)


def find(t: Tables) -> list[Finding]:
    """Name the time of the backward pass that belongs to earlier steps."""
    found = kept_graph(t)
    if found is None:
        return []
    text = (
        f"{found.num:.0f} of {found.of:.0f} functions of the backward pass are of a forward that ran in earlier steps."
    )
    idle = idle_finding(t, IdleRule(META.id, TITLE, evidence=lambda _t, _o: [text]))
    if t.device_id < 0:
        return idle
    tasks = np.flatnonzero(t.launched_in(found.host))
    busy = kernel_finding(t, KernelRule(META.id, TITLE, MIN_SHARE), tasks)
    if not busy:
        return idle
    if not idle:
        return [replace(busy[0], evidence=(text, *busy[0].evidence))]
    both = replace(
        idle[0],
        lost_ns=idle[0].lost_ns + busy[0].lost_ns,
        total_ns=idle[0].total_ns + busy[0].total_ns,
        evidence=(*idle[0].evidence, *busy[0].evidence),
        tasks=tasks,
    )
    return [both]
