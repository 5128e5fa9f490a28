"""Collect garbage on a schedule.

What it does
    Freezes the objects that live after the warm-up, switches automatic collection off, and collects every so many
    steps between two of them.

What to watch
    Cycles wait for the next collection; what they hold stays in memory until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, Patch, identical
from diagnose.changes.patches import memory

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


ADVICE = Advice(
    before="for batch in loader:\n    run_step(batch)",
    after="from diagnose.kernels.gc_schedule import scheduled_gc\n\n"
    "# What exists is frozen, and automatic runs are switched off.\n"
    "with scheduled_gc() as collect:\n"
    "    for batch in loader:\n"
    "        run_step(batch)\n"
    "        collect.step()  # collects every so many steps",
    least=0.95,  # of a hundred steps one still collects, but only what was made since the freeze
    needs="memory for the cycles that wait for the next collection",
)


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    """Return the advice; of long steps, those in which the collector runs."""
    if finding.rule == "periodic-stall" and finding.facts.get("phase") != "collection":
        return None
    return ADVICE


CHANGE = Change(
    id="schedule-gc",
    title="Freeze long-lived objects and collect between steps on a schedule",
    numerics=identical(),
    patch=Patch(memory.schedule_gc),
    edit=ByHand("which loop trains only the script's author knows"),
    advice=_advice,
    remedy="diagnose.kernels.gc_schedule",
)
