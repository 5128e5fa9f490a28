"""Keep the loader's workers between epochs.

What it does
    Passes `persistent_workers=True` to the DataLoader. An epoch then starts without starting processes.

What to watch
    Workers keep their copy of the dataset. Changes that you make to it between epochs do not reach them.
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
