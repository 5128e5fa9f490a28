"""Reduce gradients in buckets instead of one by one.

What it does
    Replaces your loop of `dist.all_reduce(p.grad)` by DistributedDataParallel. It reduces buckets of 25 MB while the
    backward runs.

What to watch
    The CPU still waits for the last one or two buckets after the backward.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Change, Patch, Proposal, rounding
from diagnose.changes.common.gradients import BUCKET_MB, MODERATE_BUCKETS, is_reduced_by_hand
from diagnose.changes.patches.distributed import with_arguments

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

BUCKETS = (5, 2)  # that are left of many small reductions, at least and at most saved


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    facts = finding.facts
    by_hand = is_reduced_by_hand(facts)
    if not by_hand and not facts.get("one_by_one"):
        return None
    device = "device_ids=[local_rank], " if facts.get("has_device", True) else ""
    return Proposal(
        before="for p in model.parameters():\n    dist.all_reduce(p.grad)",
        after=f"model = DistributedDataParallel(model, {device}bucket_cap_mb={BUCKET_MB},\n"
        "                                gradient_as_bucket_view=True)",
        least=0.7 if by_hand else 0.3,
    )


def _effect(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect of few collectives: the others' start-ups go, with the host's calls; the bytes stay."""
    import numpy as np

    from diagnose.model.intervals import intersect, span
    from diagnose.replay.effects import effect_of_tasks
    from diagnose.tables.collectives import host_calls_of

    if not len(finding.tasks):
        return None
    length = (t.tasks.end - t.tasks.start)[finding.tasks].astype(np.float64)
    each = len(finding.tasks) / t.steps.num
    least, most = (min(1.0, left / each) for left in BUCKETS)
    start_up = float(length.min())
    return effect_of_tasks(
        t,
        finding,
        finding.tasks,
        ((1 - least) * np.full(len(length), start_up), (1 - most) * np.full(len(length), start_up)),
        f"{BUCKETS[1]} to {BUCKETS[0]} collectives a step carry what {each:.0f} carry now.",
        host=intersect(host_calls_of(t, finding.tasks), span(*t.steps.window)),
        host_left=(least, most),
        frees_host=True,
    )


CHANGE = Change(
    id="bucket-gradients",
    title="Reduce gradients in buckets instead of one by one",
    numerics=rounding("gradients are summed in another order; compare the loss of the first steps"),
    patch=Patch(partial(with_arguments, edit=MODERATE_BUCKETS), group="buckets"),
    proposal=_proposal,
    effect=_effect,
    applies=to_training,
    remedy="diagnose.kernels.distributed.bucket_tuning",
)
