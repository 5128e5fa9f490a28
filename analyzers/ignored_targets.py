"""Logits are computed for targets that the loss ignores.

What it looks for
    Cross entropies at least half of whose targets are `ignore_index`, as the capture counts them, whose logits come
    from a product that computes all rows. What the ignored rows take of the product, of the loss and of their functions
    in the backward pass: at least 5 % of the step, or of the busy time. Where another operator is given all logits too,
    as a metric over all positions, a limitation names it instead.

Why it costs
    A vocabulary has tens of thousands of classes, and each row of logits is a product with all of them. The rows of
    ignored targets are multiplied, normalised and led back through the same products, and add zeros to the gradients.

What to do
    Gather the rows with a label before the projection: logits, loss and gradients are then of these alone.

How sure
    High that the targets are ignored. What their rows take is their share of the rows: a product of few rows is less
    efficient, and to gather them takes a copy.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.intervals import EMPTY, Intervals
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.ignored_targets import IgnoredTargets, ignored_targets
from diagnose.text.numbers import percent

META = RuleMeta(
    id="ignored-targets",
    kind="idle",
    order=133,
    host_order=82,
    legend=Legend("logits of ignored targets were computed", "#5f7f4a"),
    changes=("gather-labelled-rows",),
    needs=("shapes", "contents of tensors"),
    without_dataflow=True,
)
MIN_STEP_SHARE = 0.05  # of the step, or of the busy time
TITLE = "Logits are computed for targets that the loss ignores"


def claim(_t: Tables, _left: Intervals) -> Intervals:
    """Claim no idle time: fewer rows make kernels shorter, and not fewer."""
    return EMPTY


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim the ignored rows' share of projection and loss, at the ends of their operators."""
    found = ignored_targets(t)
    if found is None or found.readers:
        return EMPTY
    start, end = found.host
    return worth_claiming(t, left, Intervals(end - ((end - start) * found.share).astype(np.int64), end), MIN_STEP_SHARE)


def find(t: Tables) -> list[Finding]:
    """Name the loss, and how many of the targets are ignored."""
    found = ignored_targets(t)
    if found is None or found.readers:
        return []
    facts = {"ignored": round(found.share, 4)}
    text = (
        f"The cross entropy is given {found.targets:,.0f} targets, of which {found.ignored:,.0f} are ignored: "
        f"{percent(found.share, 0)} of the logits, {found.classes:,} for each target, have no part in the loss."
    )
    if t.device_id < 0:
        rule = IdleRule(META.id, TITLE, probe="middle", evidence=lambda _t, _o: [text], facts=facts)
        return [_placed(found, each) for each in idle_finding(t, rule)]
    tasks = np.flatnonzero(t.launched_in(found.host))
    kept = (1 - found.share) * float((t.tasks.end - t.tasks.start)[tasks].sum())
    waste = KernelRule(META.id, TITLE, MIN_STEP_SHARE, kept, [text], facts=facts)
    return [_placed(found, each) for each in kernel_finding(t, waste, tasks)]


def _placed(found: IgnoredTargets, finding: Finding) -> Finding:
    """Name the line of the loss before all others."""
    loss = Where(found.file or None, found.line or None, op="aten::cross_entropy_loss")
    others = [w for w in finding.where if (w.file, w.line) != (loss.file, loss.line)]
    return replace(finding, where=(loss, *others)[:3])
