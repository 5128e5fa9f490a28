"""Multiply on the side of a sum over rows on which these are narrow.

What it does
    Moves a product with weights before what combines rows, as in message passing, if it makes them narrower. Else it
    comes last. A bias comes after both. What is only summed up or averaged is so before the product.

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


_TITLES = {
    "first": "Multiply first, then combine the rows",
    "last": "Multiply last, after the rows are combined",
    "summed": "Sum up or average the argument first, then multiply",
}


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    title = _TITLES[str(finding.facts.get("kind"))]
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
