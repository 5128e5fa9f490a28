"""Keep the loader's workers between epochs.

What it does
    Makes the DataLoader with `persistent_workers=True`, so that an epoch does not begin with starting processes.

What to watch
    Workers keep their copy of the dataset: what `set_epoch` changes there must reach them another way. No new seed is
    drawn for the workers of an epoch from the generator that shuffles: from the second epoch on samples come in another
    order than from workers that are started again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.common.loading import KEEPING_WORKERS, KEPT_WORKERS, loader_call
from diagnose.changes.patches import loading
from diagnose.model.numerics import number

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    facts = finding.facts
    workers = facts.get("num_workers")
    period = facts.get("period")
    each_epoch = not facts.get("phase") and period is not None and period == facts.get("num_batches")  # unknown phase
    with_epochs = bool(facts.get("starts_with_epochs"))
    share = number(facts, "first_batch_share") if with_epochs else 1.0
    is_start = with_epochs or facts.get("phase") == "loading" or each_epoch
    if not is_start or not workers or facts.get("persistent_workers"):
        return None
    return Proposal(
        before=loader_call(facts, num_workers=workers),
        after=loader_call(facts, num_workers=workers, persistent_workers=True),
        least=0.3 * share,
        most=0.95 * share,
        needs="a dataset that does not change between epochs",
    )


CHANGE = Change(
    id="keep-workers",
    title="Keep the loader's workers between epochs",
    numerics=identical(f"in the first epoch; {KEPT_WORKERS}", first_epoch=True),
    patch=Patch(loading.keep_workers, group="workers"),
    edit=KEEPING_WORKERS,
    proposal=_proposal,
    remedy="diagnose.kernels.loader_tuning",
)
