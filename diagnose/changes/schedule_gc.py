"""Collect garbage on a schedule.

What it does
    Freezes the objects that live after the warm-up, switches automatic collection off, and collects every so many
    steps between two of them.

What to watch
    Cycles wait for the next collection; what they hold stays in memory until then.
"""

from __future__ import annotations

from diagnose.changes.common.change import Advice, ByHand, Change, Patch, identical
from diagnose.changes.patches import memory

CHANGE = Change(
    id="schedule-gc",
    title="Freeze long-lived objects and collect between steps on a schedule",
    numerics=identical(),
    patch=Patch(memory.schedule_gc),
    edit=ByHand("which loop trains only the script's author knows"),
    advice=Advice(
        before="for batch in loader:\n    run_step(batch)",
        after="from diagnose.kernels.gc_schedule import scheduled_gc\n\n"
        "with scheduled_gc() as collect:          # freezes what exists, switches automatic runs off\n"
        "    for batch in loader:\n"
        "        run_step(batch)\n"
        "        collect.step()                   # collects every so many steps, where it hurts least",
        least=0.95,  # of a hundred steps one still collects, but only what was made since the freeze
        needs="memory for the cycles that wait for the next collection",
    ),
    remedy="diagnose.kernels.gc_schedule",
)
