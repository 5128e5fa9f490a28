"""Tensors are copied to be put one behind the other.

What it looks for
    Kernels of `torch.cat` and `torch.stack`: at least 20 % of the busy time. Without a device: calls of
    `torch.cat` in which one input is at least four fifths of the result, together at least 5 % of the step.

Why it costs
    All parts are read and written once more. Where a tensor grows by concatenation, as a cache of keys and values does
    that takes one token at a time or a replay memory, the whole of it is copied for each small piece: the cost grows
    with the square of the length.

What to do
    Make the whole tensor once and write each piece into its slice; in a model's code return slices instead of parts.

How sure
    High for the time; whether the result has to be one tensor is not in the trace.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleGaps, IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.grown_tensors import grown_tensors
from diagnose.text.patterns import lazy_pattern

META = RuleMeta(
    id="repeated-concatenation",
    kind="kernel",
    order=56,
    host_order=83,
    legend=Legend("a large tensor was copied to put little behind it", "#8f6b3a"),
    changes=("preallocate",),
    host_needs=("shapes",),
)
MIN_BUSY_SHARE = 0.2  # of the busy time: skip connections of a U-Net take 3 to 10 %
MIN_HOST_SHARE = 0.05  # of the step without a device, of concatenations that copy what is there already
TITLE = "A large tensor is copied each time that little is put behind it"
_KERNELS = lazy_pattern(r"CatArrayBatchedCopy")


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim the operators that copy what is there already."""
    return worth_claiming(t, left, grown_tensors(t).host, MIN_HOST_SHARE)


def find(t: Tables, free: Mask | None = None) -> list[Finding]:
    """Name the time of concatenations."""
    if free is None:
        facts = {"in_rows": grown_tensors(t).whole[1:] == grown_tensors(t).piece[1:]}
        return idle_finding(t, IdleRule(META.id, TITLE, probe="middle", evidence=_shapes, facts=facts))
    tasks = np.flatnonzero(free & t.tasks_matching(_KERNELS))
    evidence = top_kernels(t, tasks, most=2)
    rule = KernelRule(
        META.id, "The device copies tensors to put them one behind the other", MIN_BUSY_SHARE, 0.0, evidence
    )
    return kernel_finding(t, rule, tasks)


def _shapes(t: Tables, _gaps: IdleGaps) -> list[str]:
    found = grown_tensors(t)
    whole, piece = (" × ".join(map(str, shape)) for shape in (found.whole, found.piece))
    return [f"The largest has {whole} elements, {piece} are put to them."]
