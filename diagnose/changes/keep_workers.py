"""Keep what a loader starts: its workers between epochs, its iterator between batches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.common.loading import KEEPING_WORKERS, KEPT_WORKERS, loader_call
from diagnose.changes.common.statements import STATEMENTS, of_statements
from diagnose.changes.patches import loading
from diagnose.model.numerics import number, other_training

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


_KEPT = """batches = iter(loader)   # once

batch = next(batches, None)   # in each step
if batch is None:   # the epoch has ended
    batches = iter(loader)
    batch = next(batches)"""


def _iterator_proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    share = number(finding.facts, "restart_share")
    found = of_statements(finding.facts.get("edits"), least=0.8 * share, most=share)
    return found if found.after else replace(found, before="batch = next(iter(loader))", after=_KEPT)


CHANGES = (
    Change(
        id="keep-workers",
        page="""Keep the loader's workers between epochs.

What it does
    Passes `persistent_workers=True` to the DataLoader. An epoch then starts without starting processes.

What to watch
    Workers keep their copy of the dataset. Changes that you make to it between epochs do not reach them.
""",
        title="Keep the loader's workers between epochs",
        numerics=identical(f"in the first epoch; {KEPT_WORKERS}", first_epoch=True),
        patch=Patch(loading.keep_workers, group="workers"),
        edit=KEEPING_WORKERS,
        proposal=_proposal,
        remedy="diagnose.kernels.loader_tuning",
    ),
    Change(
        id="keep-iterator",
        page="""Make the loader's iterator once.

What it does
    `next(iter(loader))` starts an epoch for each batch: it draws the order of all samples, and starts the workers. One
    iterator, made before the loop, begins again when an epoch ends.

What to watch
    Batches then come without repetition within an epoch. To draw with repetition:
    `RandomSampler(dataset, replacement=True, num_samples=…)`.
""",
        title="Make the loader's iterator once, not for each batch",
        numerics=other_training("batches come without repetition within an epoch"),
        edit=STATEMENTS,
        proposal=_iterator_proposal,
        applies=lambda _, finding: bool(finding.facts.get("restart_share")),
    ),
)
