"""Batches end in positions that are padding in every row.

What it looks for
    Inputs of integers whose last columns hold one and the same number in all rows, as the capture finds them for the
    calls of outermost modules, with another number of such columns from batch to batch. Their share of what the calls
    and their functions in the backward pass take: at least 5 % of the step, or of the busy time.

Why it costs
    Each position is computed, whether a mask hides it or not. Texts that are padded to the length of the longest one
    that may come, and not of the longest in their batch, are mostly padding.

What to do
    Pad each batch to its own longest row. Rows of like length in one batch save the rest.

How sure
    High that the columns hold one number in every row. What they take is their share of the positions: attention, which
    grows with the square, saves more, and what does not depend on positions less.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleGaps, IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.intervals import EMPTY, Intervals
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.padded_calls import padded_calls
from diagnose.text.numbers import percent

META = RuleMeta(
    id="padded-batch",
    kind="idle",
    order=132,
    host_order=81,
    legend=Legend("positions that are padding were computed", "#7b6d9e"),
    changes=("trim-padding",),
    needs=("shapes", "contents of tensors"),
    without_dataflow=True,
)
MIN_STEP_SHARE = 0.05  # of the step, or of the busy time
TITLE = "Batches end in padding: no row uses their last positions"


def claim(_t: Tables, _left: Intervals) -> Intervals:
    """Claim no idle time: shorter rows make kernels shorter, and not fewer."""
    return EMPTY


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim the padding's share of the calls, at their ends."""
    found = padded_calls(t)
    if found is None:
        return EMPTY
    start, end = found.host
    return worth_claiming(t, left, Intervals(end - ((end - start) * found.share).astype(np.int64), end), MIN_STEP_SHARE)


def find(t: Tables) -> list[Finding]:
    """Name the module, and how many of its positions are padding."""
    found = padded_calls(t)
    if found is None:
        return []
    facts = {"module": found.module, "padded": round(found.share, 4)}
    by = t.capture.info.loader.batches_by if t.capture.info is not None else None
    makes = (Where(by[0], by[1], by[3], last_line=by[2]),) if by is not None else ()
    if t.device_id < 0:
        rule = IdleRule(META.id, TITLE, probe="middle", evidence=_texts, facts=facts)
        return [replace(finding, where=(*makes, *finding.where)) for finding in idle_finding(t, rule)]
    tasks = np.flatnonzero(t.launched_in(found.host))
    kept = (1 - found.share) * float((t.tasks.end - t.tasks.start)[tasks].sum())
    kernels = KernelRule(META.id, TITLE, MIN_STEP_SHARE, kept, _texts(t, None), facts=facts)
    return [replace(finding, where=(*makes, *finding.where)) for finding in kernel_finding(t, kernels, tasks)]


def _texts(t: Tables, _gaps: IdleGaps | None) -> list[str]:
    found = padded_calls(t)
    if found is None:
        return []
    return [
        f"{found.module} is given batches of {found.positions:,.0f} positions, of which the longest row uses "
        f"{found.used:,.0f}: {percent(found.share, 0)} are padding in every row."
    ]
