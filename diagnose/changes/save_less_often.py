"""Save checkpoints less often.

What it does
    Halves how often a checkpoint is written: half of what saving costs.

What to watch
    A run that is interrupted loses the steps since its last checkpoint: at most twice as many as now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import own_place
from diagnose.changes.common.change import Advice, ByHand, Change, identical
from diagnose.changes.common.line_calls import SAVES, calls

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    if finding.facts.get("phase") != "checkpoint" and not calls(finding, SAVES):
        return None
    place, period = own_place(finding), finding.facts.get("period")
    every = 2 * period if isinstance(period, int) and period > 1 else "(2 * every)"
    code = (place.code or "") if place else ""
    return Advice(
        before=code,
        after=f"if step % {every} == 0:   # half as often: half of the cost\n    {code or 'torch.save(state, path)'}",
        least=0.5,
        most=0.9,
        needs="that up to twice as many steps may be lost when a run is interrupted",
    )


CHANGE = Change(
    id="save-less-often",
    title="Save checkpoints less often",
    numerics=identical(),
    patch=ByHand("how many steps a run may lose is the user's to decide"),
    edit=ByHand("how many steps a run may lose is the user's to decide"),
    advice=_advice,
    without_remedy="how often a script saves is its own",
)
