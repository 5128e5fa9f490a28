"""Capture again after the warm-up.

What it does
    Records later steps, when kernels are loaded, memory is taken and code is compiled.

What to watch
    `diagnose trace` waits by itself until step times have settled.
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
        after=f"diagnose trace {script_of(program)}        # waits until step times have settled\n"
        "# or, with torch.profiler: schedule=torch.profiler.schedule(wait=20, warmup=2, active=3)",
        most=0.0,
        needs="a few more steps of running time",
    )


CHANGE = Change(
    id="capture-steady-steps",
    title="Capture again after the warm-up",
    numerics=identical(),
    patch=ByHand("it changes the recording, not the script"),
    edit=ByHand("it changes the recording, not the script"),
    advice=_advice,
    records="later",
    without_remedy="a command",
)
