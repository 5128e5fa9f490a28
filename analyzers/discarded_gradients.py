"""A backward pass computes gradients that are cleared unused.

What it looks for
    Steps with several backward passes, each with an optimizer's call behind it, in which a pass accumulates gradients
    that this call does not update and that are cleared before the pass of the optimizer which does; or one pass, and
    gradients of layers that no optimizer updates. The time is the end of the pass, after the last gradient that is
    used: at least 2 % of the step.

Why it costs
    A loss that leads through another model makes autograd go back through that model as well: a discriminator's loss
    of generated images computes all gradients of the generator, which are thrown away.

What to do
    `detach()` what the other model made, or make it under `torch.no_grad()`: its gradient is not used there.

How sure
    High where the shapes of the gradients are recorded: those that are left over are counted.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding
from diagnose.analyzers.common.locate import sampled_lines
from diagnose.analyzers.common.titles import FROZEN_GRADIENTS, UNUSED_GRADIENTS
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.discarded_gradients import discarded_gradients

META = RuleMeta(
    id="discarded-gradients",
    kind="idle",
    order=128,
    host_order=85,
    legend=Legend("gradients were computed that nothing uses", "#9a6b2f"),
    changes=("detach-inputs",),
    needs=("shapes",),
    without_dataflow=True,
)
MIN_BUSY_SHARE = 0.02  # of the busy time, or of the step


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle while the host issues the unused end of a pass."""
    return intersect(claim_host(t, left), t.gaps.host_part())


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim the unused ends of passes."""
    found = discarded_gradients(t)
    return EMPTY if found is None else intersect(left, found.host)


def find(t: Tables) -> list[Finding]:
    """Name the time of the unused ends of backward passes."""
    found = discarded_gradients(t)
    if found is None:
        return []
    title = FROZEN_GRADIENTS if found.is_frozen else UNUSED_GRADIENTS
    text = (
        f"{found.num:.0f} gradients a step are cleared before an optimizer uses them, behind {found.used:.0f} that one "
        "does."
    )
    idle = idle_finding(
        t, IdleRule(META.id, title, evidence=lambda _t, _o: [text], facts={"is_frozen": found.is_frozen})
    )
    if t.device_id < 0:
        return idle
    tasks = np.flatnonzero(t.launched_in(found.host))
    busy = kernel_finding(t, KernelRule(META.id, title, MIN_BUSY_SHARE, facts={"is_frozen": found.is_frozen}), tasks)
    if not busy:
        return idle
    where = tuple(place for place, _ in sampled_lines(t, found.host, most=1)) or busy[0].where
    if not idle:
        return [replace(busy[0], evidence=(text, *busy[0].evidence), where=where)]
    both = replace(
        idle[0],
        lost_ns=idle[0].lost_ns + busy[0].lost_ns,
        total_ns=idle[0].total_ns + busy[0].total_ns,
        evidence=(*idle[0].evidence, *busy[0].evidence),
        tasks=tasks,
        where=where,
    )
    return [both]
