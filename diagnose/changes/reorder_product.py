"""Multiply on the side of a sum over rows on which these are narrow.

What it does
    Moves a product with weights before what combines rows, as in message passing, if it makes them narrower. Else it
    comes last. A bias comes after both.

What to watch
    Sums are taken in another order. A layer that also makes rows wider needs both orders, chosen by its widths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Proposal, rounding
from diagnose.changes.common.statements import STATEMENTS, of_statements, there

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

_ORDER = rounding("sums are taken in another order")


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    is_first = finding.facts.get("kind") == "first"
    title = "Multiply first, then combine the rows" if is_first else "Multiply last, after the rows are combined"
    needs = "" if finding.facts.get("is_always") else "the order chosen by the widths of each layer"
    if finding.facts.get("has_bias"):
        needs = "a bias that is added after both"
    return of_statements(
        finding.facts.get("edits"), title=title + there(finding), numerics=_ORDER, needs=needs, least=0.5
    )


CHANGE = Change(
    id="reorder-product",
    title="Multiply on the side of narrow rows",
    numerics=_ORDER,
    edit=STATEMENTS,
    proposal=_proposal,
)
