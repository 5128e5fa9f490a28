"""Save checkpoints from a background thread.

What it does
    `BackgroundSaver().save(state, path)` copies the state to host memory. A thread writes the file while the next steps
    run.

What to watch
    It needs memory for one copy. The file is incomplete until `saver.wait()` returns. The saver of the diff waits by
    itself before the process opens, lists, moves or removes the file, and before it starts a program. Other processes
    that read the file need the call. A failed write ends the run with an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, EditLoop, Proposal, identical
from diagnose.model.line_calls import SAVES, SAVES_SHARDS, calls
from diagnose.model.locations import own_place

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


IMPORT = "from diagnose.kernels.saving import BackgroundSaver"
NO_OVERLAP = "what follows each torch.save uses the file, so that nothing runs while it is written; save less often"
MIN_SAVED_WITH_DEVICE = 0.3  # of the pause: copying to the host stays, and where the disk is fast that is most of it
# Without a device the thread competes with the steps for the CPU: two scripts on two virtual cores saved 0.2 to 0.7.
MIN_SAVED_WITHOUT_DEVICE = 0.15


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    if finding.facts.get("phase") != "checkpoint" and not calls(finding, SAVES):
        return None
    place = own_place(finding.where)
    call = "save_sharded(state, folder)" if calls(finding, SAVES_SHARDS) else "save(state, path)"
    return Proposal(
        before=(place.code or "") if place else "torch.save(state, path)",
        after=f"{IMPORT}\n\nsaver = BackgroundSaver()\nsaver.{call}   # the step waits for a copy only\n"
        "...\nsaver.wait()             # before the program ends, or reads, copies or moves the file",
        least=MIN_SAVED_WITHOUT_DEVICE if finding.facts.get("has_device") is False else MIN_SAVED_WITH_DEVICE,
        most=0.95,
        needs="host memory for one copy of what is saved",
    )


CHANGE = Change(
    id="save-in-background",
    title="Save checkpoints from a background thread",
    numerics=identical(),
    edit=EditLoop("with_background_saver", "device", "cpu", gains_nothing=NO_OVERLAP),
    is_moved=True,
    proposal=_proposal,
    remedy="diagnose.kernels.saving",
)
