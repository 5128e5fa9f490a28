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


def _applies(_program: Program, finding: Finding) -> str:
    collects = finding.rule != "periodic-stall" or finding.facts.get("phase") == "collection"
    return "" if collects else "the long steps collect no garbage"


CHANGE = Change(
    id="schedule-gc",
    title="Freeze long-lived objects and collect between steps on a schedule",
    numerics=identical(),
    patch=Patch(memory.schedule_gc),
    edit=ByHand("which loop trains only the script's author knows"),
    advice=Advice(
        before="for batch in loader:\n    run_step(batch)",
        after="from diagnose.kernels.gc_schedule import scheduled_gc\n\n"
        "# What exists is frozen, and automatic runs are switched off.\n"
        "with scheduled_gc() as collect:\n"
        "    for batch in loader:\n"
        "        run_step(batch)\n"
        "        collect.step()  # one collection every 100 steps: scheduled_gc(every=…)",
        least=0.95,  # of a hundred steps one still collects, but only what was made since the freeze
        needs="memory for the cycles that wait for the next collection",
    ),
    applies=_applies,
    remedy="diagnose.kernels.gc_schedule",
)
