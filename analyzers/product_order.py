"""Rows are combined on the wrong side of a product that makes them narrower or wider.

What it looks for
    Rows that are gathered, scaled and added up, such as messages of a graph, next to a product with weights. Or a
    product of three matrices. Columns do not mix, so both orders give the same. Also products and 1x1 convolutions
    whose results are only averaged or summed up. Threshold: 3% of the step.

Why it costs
    What combines rows takes longer the wider they are. Messages of 192 numbers that a product then makes 64 cost three
    times as much as messages of 64.

What to do
    If the product makes rows narrower, multiply first: `adj @ (x @ weight)`. If it makes them wider, multiply last. Add
    a bias after both. Take a mean before the layer: `head(x.mean(1))` instead of `head(x).mean(1)`.

How sure
    High: shapes and times are of the recorded operators. Needs `diagnose trace`.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at
from diagnose.analyzers.common.product_edits import reordered
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables.flow import Flow

META = RuleMeta(
    id="product-order",
    kind="idle",
    order=146,
    host_order=68,
    legend=Legend("rows were combined in more columns than needed"),
    changes=("reorder-product",),
    needs=("data flow",),
)


def detect(flow: Flow) -> Iterator[Avoidable]:
    """Yield products on the wrong side of what combines rows or sums them up, the largest first."""
    yield from sorted((*_ordered(flow), *_summed(flow)), key=lambda one: -one.work.share * one.avoidable)


def _ordered(flow: Flow) -> Iterator[Avoidable]:
    for one in flow.found.product_order:
        product, line = (stack[0] if stack else None for stack in (one.product_stack, one.row_stacks[0]))
        if one.is_first:
            title = "Rows are combined before a product makes them narrower"
            text = f"{at(line)} combines rows of {one.columns:,} numbers; the product at {at(product)} makes "
            text += f"{one.fewer:,}."
        else:
            title = "Rows are combined after a product has made them wider"
            text = f"The product at {at(product)} makes rows of {one.fewer:,} numbers {one.columns:,} wide, and "
            text += f"{at(line)} combines these."
        callers = [stack[len(stack) - len(one.product_stack)] for stack in one.row_stacks[:1] if one.product_stack]
        lines = (product, *callers, *one.work.lines)
        facts = {"kind": "first" if one.is_first else "last", "is_always": one.is_always, "has_bias": one.has_bias}
        yield Avoidable(
            title, text[0].upper() + text[1:], one.work, lines, facts, one.avoidable, edits=reordered(flow.source, one)
        )


def _summed(flow: Flow) -> Iterator[Avoidable]:
    for each in flow.found.summed_products:
        text = (
            f"{at(each.sum_line)} makes one of {each.num_summed:,} numbers that the product at {at(each.line)} makes."
        )
        yield Avoidable(
            "A product is computed, and only sums of it are read",
            text[0].upper() + text[1:],
            each.work,
            (each.line, each.sum_line),
            {"kind": "summed", "is_always": True},
            each.avoidable,
        )


_RULE = AvoidableRule(META, detect, frees_host=False)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find
