"""End gradients above layers that do not train.

What it does
    Detaches what another model made, freezes parameters that no optimizer updates, leaves out `requires_grad_()`, or
    runs frozen layers under `torch.no_grad()`.

What to watch
    Detach only if the other model's optimizer does not step on this loss. A reentrant checkpoint needs an input with a
    gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Change, Proposal, identical
from diagnose.changes.common.statements import STATEMENTS, of_statements
from diagnose.model.locations import at_line, own_place

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _applies(program: Program, finding: Finding) -> bool:
    return finding.facts.get("kind") not in ("result", "unchanged", "zero factor") and to_training(program, finding)


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    facts, place = finding.facts, own_place(finding.where)
    at = f" at {at_line(place)}" if place else ""
    modules, needs = facts.get("modules"), ""
    title = "Detach what the other model made: nothing uses its gradients"
    if facts.get("is_frozen"):
        title = f"Freeze {modules} with requires_grad_(False): no optimizer updates them"
        needs = "layers that come before all that train"
    elif facts.get("is_unused"):
        title = f"Freeze {modules} for the loss{at}, which does not train them"
    elif facts.get("is_asked"):
        title = f"Leave out requires_grad_(){at}: nothing below it trains"
        needs = "no reentrant checkpoint, which needs an input with a gradient"
    elif facts.get("below"):
        title = f"Run what is below {facts['below']} without gradients{at}: nothing there trains"
    # Of the unused functions of the pass the first may be needed.
    return of_statements(facts.get("edits"), title=title, needs=needs, least=0.8)


CHANGE = Change(
    id="detach-inputs",
    title="Detach what the other model made: nothing uses its gradients",
    numerics=identical(),
    edit=STATEMENTS,
    proposal=_proposal,
    applies=_applies,
)
