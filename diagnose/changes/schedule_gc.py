"""Collect garbage on a schedule.

What it does
    Calls `gc.freeze()` and `gc.disable()` after the warm-up, then `gc.collect()` every 100 steps.

What to watch
    Reference cycles keep their memory until the next collection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.patches import memory

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _applies(_program: Program, finding: Finding) -> bool:
    return finding.facts.get("phase", "collection") == "collection"  # a phase is known of periodic pauses alone


# With the standard library alone; the module does the same, and sets things back behind the loop.
_AFTER = """import gc

gc.collect()
gc.freeze()   # what exists is not looked through again
gc.disable()  # no automatic runs (scheduled_gc of diagnose.kernels.gc_schedule does all this)
for step, batch in enumerate(loader):
    run_step(batch)
    if step % 100 == 99:
        gc.collect()"""

CHANGE = Change(
    id="schedule-gc",
    title="Freeze long-lived objects with gc.freeze() and collect garbage every N steps",
    numerics=identical(),
    patch=Patch(memory.schedule_gc),
    proposal=Proposal(
        before="for batch in loader:\n    run_step(batch)",
        after=_AFTER,
        least=0.95,  # of a hundred steps one still collects, but only what was made since the freeze
        needs="memory for the cycles that wait for the next collection",
    ),
    applies=_applies,
    remedy="diagnose.kernels.gc_schedule",
)
