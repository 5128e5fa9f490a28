"""Load the coming batches on a thread.

What it does
    `BackgroundLoader(loader)` loads the next batches on a thread while the step runs, without workers. It helps if
    loading waits, or computes outside of the GIL.

What to watch
    Samples computed in Python gain nothing. A dataset that draws from global random generators is loaded as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.patches import loading

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    facts = finding.facts
    if not facts.get("single_process") or facts.get("restart_share") or facts.get("library") == "transformers":
        return None
    if facts.get("holds_lock"):
        return None  # a thread would take turns with the training
    return Proposal(
        before="for batch in loader:\n    ...",
        after="from diagnose.kernels.background_loader import BackgroundLoader\n\n"
        "for batch in BackgroundLoader(loader):   # up to two batches ahead, on a thread\n    ...",
        least=0.0,
        needs="loading that waits, or computes while Python's lock is free (decoders, NumPy, tensor operators)",
    )


CHANGE = Change(
    id="load-on-thread",
    title="Load the coming batches on a thread if worker processes do not fit",
    numerics=identical(),
    patch=Patch(loading.load_on_thread),
    is_moved=True,
    proposal=_proposal,
    remedy="diagnose.kernels.background_loader",
)
