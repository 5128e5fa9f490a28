"""Keep no average of weights that never change.

What it does
    Skips parameters that are not trained in the loop that averages a model: `if weight.requires_grad:`. Their average
    is what they are.

What to watch
    The averaged model must start as a copy of the model. Set `requires_grad` before the loop, not during training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Proposal, rounding
from diagnose.changes.common.statements import STATEMENTS, of_statements, there

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    title = f"Leave weights out that are not trained{there(finding)}"
    needs = "averages that began as copies of the weights"
    return of_statements(finding.facts.get("edits"), title=title, needs=needs, least=0.8)


CHANGE = Change(
    id="skip-frozen",
    title="Leave weights out that are not trained",
    numerics=rounding("averages of frozen weights stay what they were, without rounding"),
    edit=STATEMENTS,
    proposal=_proposal,
    applies=lambda _, finding: finding.facts.get("kind") == "unchanged",
)
