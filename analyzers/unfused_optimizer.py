"""The optimizer updates parameters one by one.

What it looks for
    `Optimizer.step` with 50 launches or more per call, most of them not multi-tensor kernels: the idle inside it,
    and its kernels' time beyond what one pass over parameters, gradients and state needs.

Why it costs
    A for-loop optimizer launches several tiny kernels for each tensor. The device finishes each before the next is
    launched.

What to do
    `fused=True` (one kernel for all tensors), or `foreach=True` where fused is not supported.

How sure
    High: the optimizer marks its own step, and the launches in it are counted.
"""

from __future__ import annotations

from diagnose.analyzers.common.idle_findings import Idle, idle_finding
from diagnose.analyzers.common.optimizers import is_loop, optimizer_facts
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.optimizer_spans import updates

META = RuleMeta(
    id="unfused-optimizer",
    kind="idle",
    order=130,
    host_order=90,
    legend=Legend("the optimizer updated parameters one by one", "#c2477f"),
    changes=("fused-optimizer", "foreach-optimizer"),
    inflated=True,
    cause="host-work",
)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle inside the step of a for-loop optimizer."""
    if not is_loop(t):
        return EMPTY
    return intersect(intersect(left, t.gaps.host_part()), updates(t))


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim, without a device, the step of an optimizer that updates tensor by tensor."""
    return intersect(left, updates(t)) if is_loop(t) else EMPTY


def find(t: Tables) -> list[Finding]:
    """Name the idle time of a for-loop optimizer."""
    facts = optimizer_facts(t)
    what = "launches" if t.device_id >= 0 else "operators"
    text = f"{facts['launches']:.0f} {what} per call of its step, {facts['multi_tensor']:.0f} of them for many tensors."
    title = f"{facts['name']} updates parameters one by one"
    return idle_finding(t, Idle(META.id, title, evidence=lambda _t, _o: [text], facts=facts))
