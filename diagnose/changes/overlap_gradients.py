"""Exchange gradients in buckets that start during the backward.

What it does
    Passes `bucket_cap_mb=25` to DistributedDataParallel. The first bucket is then sent while the backward goes on.

What to watch
    The last bucket is ready only when the backward ends. Its transfer is not overlapped.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_data_parallel_training
from diagnose.changes.common.change import Change, Patch, Proposal, rounding
from diagnose.changes.common.gradients import (
    BUCKET_MB,
    MODERATE_BUCKETS,
    ddp_arguments,
    ddp_call,
    has_free_core,
    is_reduced_by_hand,
)
from diagnose.changes.patches.distributed import with_arguments

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

LARGE_BUCKET_MB = 2 * BUCKET_MB  # beyond this little is left of the backward when the first bucket is full


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    facts, known = finding.facts, ddp_arguments(finding)
    bucket_mb = known.get("bucket_cap_mb")
    is_late = isinstance(bucket_mb, int | float) and bucket_mb > LARGE_BUCKET_MB
    if facts.get("is_exchange") or is_reduced_by_hand(facts) or not is_late or not has_free_core(facts):
        return None
    on_device = bool(facts.get("has_device"))
    cores = "" if on_device else "; and cores that compute nothing else, since an exchange without a GPU takes some"
    return Proposal(
        before=ddp_call(known, has_device=on_device),
        after=ddp_call({**known, "bucket_cap_mb": BUCKET_MB, "gradient_as_bucket_view": True}, has_device=on_device),
        least=0.2 if on_device else 0.0,
        most=0.9 if on_device else 0.5,
        needs=f"a backward that is longer than the transfer; the last bucket stays visible{cores}",
        arguments={"bucket_cap_mb": BUCKET_MB},
    )


def _effect(t: Tables, finding: Finding) -> Effect | None:
    from diagnose.changes.common.buckets import with_buckets
    from diagnose.perf_model.gpu_specs import LATENCY_NS
    from diagnose.replay.effects import Effect

    change = with_buckets(t, BUCKET_MB)
    if change is None:
        return None
    assumption = (
        f"Gradients are ready evenly during the backward; a bucket takes {LATENCY_NS // 1000} µs and its bytes."
    )
    return Effect(change, change, min(finding.lost_ns, t.steps.step_ns), assumption)


CHANGE = Change(
    id="overlap-gradients",
    title=f"Start gradient buckets of {BUCKET_MB} MB during the backward",
    numerics=rounding("buckets of another size may be summed in another order; compare the loss of the first steps"),
    patch=Patch(partial(with_arguments, edit=MODERATE_BUCKETS), group="buckets"),
    edit=MODERATE_BUCKETS,
    proposal=_proposal,
    applies=to_data_parallel_training,
    effect=_effect,
    remedy="diagnose.kernels.distributed.bucket_tuning",
)
