"""Capture again with complete records.

What it does
    Records fewer steps, so that the profiler's buffers hold all of them.

What to watch
    Nodes of CUDA graphs are recorded by newer drivers only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import script_of
from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(_finding: Finding, _step_ns: float, program: Program) -> Advice:
    return Advice(
        after=f"diagnose trace --steps 3 {script_of(program)}",
        most=0.0,
        needs="a driver and torch that record the nodes of CUDA graphs" if program.has_graphs else "a few whole steps",
    )


CHANGE = Change(
    id="capture-complete-records",
    title="Capture again with complete records",
    numerics=identical(),
    patch=ByHand("it changes the recording, not the script"),
    edit=ByHand("it changes the recording, not the script"),
    advice=_advice,
    records="more",
    without_remedy="a command",
)
