"""Compute on few rows: multiply on their side, and before they are repeated."""

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


_FIRST = {
    "plain": (
        "Compute before the rows are repeated{there}, and repeat the results",
        "products of fewer rows may be added in another order",
        "that nothing between differs from row to row",
    ),
    "spread": (
        "Compute before the values are spread over the positions{there}, and let the result broadcast",
        "the gradients of all positions are added up first",
        "that nothing between differs from position to position",
    ),
    "joined": (
        "Multiply each part by its slice of the weight before it is repeated{there}, and add the products",
        "the sums of a product are added in another order",
        "a product that is linear in what is joined: the activation comes after the sum",
    ),
    "interpolated": (
        "Apply the 1x1 convolution before its input is interpolated{there}",
        "an interpolation adds up products instead of inputs",
        "that both are linear and nothing else is in between",
    ),
}


def _first_proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    title, changed, needs = _FIRST[str(finding.facts.get("kind"))]
    # The results are repeated in the place of what they are made of.
    return of_statements(
        finding.facts.get("edits"),
        title=title.format(there=there(finding)),
        numerics=rounding(changed),
        needs=needs,
        least=0.5,
    )


CHANGES = (
    Change(
        id="reorder-product",
        page="""Multiply on the side of a sum over rows on which these are narrow.

What it does
    Moves a product with weights before what combines rows, as in message passing, if it makes them narrower. Else it
    comes last. A bias comes after both. What is only summed up or averaged is so before the product.

What to watch
    Sums are taken in another order. A layer that also makes rows wider needs both orders, chosen by its widths.
""",
        title="Multiply on the side of narrow rows",
        numerics=_ORDER,
        edit=STATEMENTS,
        proposal=_proposal,
    ),
    Change(
        id="compute-first",
        page="""Compute before rows are repeated.

What it does
    Computes on the rows as they are, and repeats, gathers, spreads or interpolates the results. A 1x1 convolution of an
    interpolated map becomes an interpolation of its result.

What to watch
    Nothing in between may differ from row to row.
""",
        title="Compute before the rows are repeated",
        numerics=rounding("products of fewer rows may be added in another order"),
        edit=STATEMENTS,
        proposal=_first_proposal,
        applies=lambda _, finding: finding.facts.get("kind") in _FIRST,
    ),
)
