"""Leave a term out while its coefficient is 0.

What it does
    Changes `loss + weight * penalty(x)` to `loss + weight * penalty(x) if weight != 0 else loss`. If the term is
    computed in another line, you edit the script.

What to watch
    Parameters that only the term uses then get no gradient, instead of zeros. Weight decay and momentum no longer
    change them. DistributedDataParallel needs `find_unused_parameters=True`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Proposal, identical
from diagnose.changes.common.statements import STATEMENTS, of_statements, there

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    title = f"Leave the term out while its coefficient is 0{there(finding)}"
    # The zeros that were added to other gradients are a part of it.
    return of_statements(finding.facts.get("edits"), title=title, least=0.8)


CHANGE = Change(
    id="skip-zero-term",
    title="Leave the term out while its coefficient is 0",
    numerics=identical("if the term is finite, and no parameter gets gradients from it only"),
    edit=STATEMENTS,
    proposal=_proposal,
    applies=lambda _, finding: finding.facts.get("kind") == "zero factor",
)
