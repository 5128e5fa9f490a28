"""Operators compute rows of which many are equal.

What it looks for
    Products with a weight and pointwise operators on rows that a gather, an expand or a repeat took from half as many
    or fewer, and products with rows that are joined of two such parts; with their backward pass at least 3 % of the
    step.

Why it costs
    Each equal row takes the time of another one: a message per edge where there is one per node, features of an item
    for each of its ratings, a condition for each frame.

What to do
    Compute the rows first and gather, expand or repeat the result. Of joined parts, multiply each with its part of the
    weight and add the products by broadcasting.

How sure
    High: how many rows differ at most follows from the rows that they are taken from. The avoidable part is the share
    of the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables.flow import Flow
from diagnose.text.numbers import percent

META = RuleMeta(
    id="equal-rows",
    kind="idle",
    order=144,
    host_order=67,
    legend=Legend("operators computed equal rows", "#a8763f"),
    needs=("data flow",),
)


def detect(flow: Flow) -> Iterator[Avoidable]:
    """Yield the lines whose operators compute rows that equal others."""
    for one in flow.found.equal_rows:
        line = one.work.line
        text = (
            f"{percent(one.avoidable, 0)} of the rows at {at(line)} equal others: {at(one.value_line)} makes them of "
            f"{one.num_rows:,}."
        )
        title, lines = "Operators compute rows of which many are equal", (one.value_line, line)
        yield Avoidable(title, text, one.work, lines, {"num_rows": one.num_rows}, one.avoidable)


_RULE = AvoidableRule(META, detect, shortens_gaps=False, frees_host=False)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find
