"""Save checkpoints from a background thread.

What it does
    Copies what is to be saved to the host, and writes the file on a thread while the next steps run.

What to watch
    The file is not there yet when the call returns. The diff waits for it before every statement that may use it: all
    but arithmetic, calls of torch and of the model, and logging. Functions of the same file are followed. If nothing is
    left that can run while the file is written, no diff is made: save less often. Host memory for one copy. Ranks that
    save parts of one checkpoint all call `save_sharded`. A run that ends waits for the last file, and a file that could
    not be written ends the process with a sentence and an exit code that is not 0. Each file appears whole or not at
    all. What saves into an open file or a buffer stays as it is.
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
NO_OVERLAP = "what follows each torch.save may use the file, so that nothing runs while it is written; save less often"
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
