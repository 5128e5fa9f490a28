"""Operators compute with zeros, padding, or rows that have no effect.

What it looks for
    What the recorded contents make needless: products with one-hot rows of at least 32 columns, with a matrix of at
    least 90 % zeros in the same places each step, or with zeros; positions that are padding in each row of a batch, at
    either end, of integers or of signals that loading was seen to fill up; rows without a gradient, as of ignored
    targets; scores that a triangular mask hides; subnormal numbers on a CPU; results of products and sorted rows of
    which at most half is read; rows of embedding tables that a step does not look up, three quarters or more, in dense
    gradients and their updates. At least 3 % of the step.

Why it costs
    A dense operator takes the same time for zeros as for other numbers, and a CPU takes far longer for subnormal ones.

What to do
    Look rows up by index, use a sparse matrix, cut the padding off, gather the rows that count before the product,
    call a fused attention with `is_causal=True`, flush subnormal numbers, slice before the product, call
    `torch.topk` in place of a sort, or let embedding tables have sparse gradients.

How sure
    High for one-hot rows, padding and triangles, which were seen whole. The avoidable part is the share of the
    elements, rows or positions; for subnormal numbers, the time beyond that of like operators.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at
from diagnose.analyzers.common.locate import source_line
from diagnose.model.diagnosis import Confidence, Finding, Where
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.flow import Flow
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.dataflow.contents import Kind, WorkOnNothing

META = RuleMeta(
    id="work-on-nothing",
    kind="idle",
    order=141,
    host_order=64,
    legend=Legend("operators computed with what has no effect", "#96608f"),
    changes=(
        "index-lookup",
        "trim-padding",
        "gather-labelled-rows",
        "flush-subnormals",
        "select-top-k",
        "sparse-embeddings",
    ),
    needs=("data flow",),
    former=(
        ("one-hot", "one-hot-product"),
        ("padding", "padded-batch"),
        ("ignored rows", "ignored-targets"),
        ("subnormal", "subnormal-numbers"),
        ("sorted", "full-sort"),
        ("untouched rows", "dense-embedding-gradients"),
    ),
)
_TITLES: dict[Kind, str] = {
    "one-hot": "Rows of a weight are looked up by a product with one-hot rows",
    "sparse": "A matrix of zeros is multiplied as a dense one",
    "zeros": "Products are computed with zeros",
    "padding": "Operators compute positions that are padding in each row",
    "ignored rows": "Operators compute rows that have no gradient",
    "triangle": "Attention computes scores that a triangular mask hides",
    "subnormal": "The CPU computes with subnormal numbers",
    "sorted": "Whole rows are sorted, and few of each are read",
    "unread": "Operators compute results of which most is not read",
    "untouched rows": "Gradients of embedding tables are dense, and all rows are updated",
}


def _detect(flow: Flow) -> list[Avoidable]:
    return [_part(one) for one in flow.found.work_on_nothing if _is_nothing(one, flow)]


def _is_nothing(one: WorkOnNothing, flow: Flow) -> bool:
    """Return whether a padding is one: measured data may be the same at an end, unless loading was seen to fill it."""
    return one.kind != "padding" or "float" not in one.dtype or one.shape[-1] in flow.padded_to


def _part(one: WorkOnNothing) -> Avoidable:
    shape = " × ".join(map(str, one.shape))
    made = f" of {at(one.value_line)}" if one.value_line is not None else ""
    share = percent(one.extent, 0)
    texts: dict[Kind, str] = {
        "one-hot": f"The rows ({shape}){made} are one-hot; {at(one.use_line)} multiplies them by a weight.",
        "sparse": f"{share} of the matrix ({shape}){made} that {at(one.use_line)} multiplies are zeros in each step.",
        "zeros": f"The tensor ({shape}){made} that {at(one.use_line)} multiplies is all zeros.",
        "padding": f"{share} of the positions of a batch ({shape}) are padding in each row.",
        "ignored rows": f"{share} of the rows ({shape}) that reach {at(one.use_line)} in the backward pass are zeros.",
        "triangle": f"The mask ({shape}){made} hides half of the scores.",
        "subnormal": f"{share} of the numbers ({shape}){made} that {at(one.use_line)} reads are subnormal.",
        "sorted": f"{share} of what {at(one.use_line)} sorts ({shape}) is not read.",
        "unread": f"{share} of the result ({shape}) of {at(one.use_line)} is not read.",
        "untouched rows": f"{share} of the rows ({shape}) of a table have a gradient of zero, and all are updated.",
    }
    facts: dict[str, object] = {"kind": one.kind}
    if one.kind == "padding":
        facts |= {"padded": one.extent, "padded_to": one.shape[-1], "of_signals": "float" in one.dtype}
    elif one.kind == "ignored rows":
        facts["ignored"] = one.extent
    lines = (one.use_line, one.value_line) if one.kind != "padding" else (one.value_line, *one.work.lines)
    confidence: Confidence = "high" if one.is_certain else "medium"
    return Avoidable(_TITLES[one.kind], texts[one.kind], one.work, lines, facts, one.avoidable, confidence)


_RULE = AvoidableRule(META, _detect, shortens_gaps=False)
claim, claim_host = _RULE.claim, _RULE.claim_host


def find(t: Tables) -> list[Finding]:
    """Name what can be avoided; of padded batches first the line that pads them, or the function that makes them."""
    return [
        replace(each, where=(*_pads(t, each.facts["padded_to"]), *each.where))
        if each.facts["kind"] == "padding"
        else each
        for each in _RULE.find(t)
    ]


def _pads(t: Tables, length: object) -> tuple[Where, ...]:
    info = t.capture.info
    for one in info.loaded.expressions if info is not None else ():
        if one.padded_to == length:
            return (Where(one.file, one.line, one.function, code=source_line(t, one.file, one.line)),)
    by = info.loader.batches_by if info is not None else None
    return (Where(by[0], by[1], by[3], last_line=by[2]),) if by is not None else ()
