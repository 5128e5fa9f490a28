"""Attention, a norm, a loss, an activation or a rotary embedding is written out in single operators.

What it looks for
    Pointwise operators and reductions, called by the script itself, which hand each other values that nothing else
    reads and which together compute a norm, a loss, GELU, a gated activation or a rotary embedding, and without a
    device what lies between the two products of an attention; with one that is the rule `unfused-attention`. What their
    backward pass does counts. The part that a fused operator leaves out: at least 3 % of the step. An attention that
    drops scores does not count: on a CPU no fused operator does.

Why it costs
    Each operator reads its inputs from memory and writes its result there for the next one to read, and the backward
    pass keeps what lies between.

What to do
    Call torch's operator: `F.scaled_dot_product_attention`, `F.layer_norm`, `F.rms_norm`, `F.cross_entropy`,
    `F.gelu(x, approximate="tanh")`, `F.glu`, or compile the function that holds the operators.

How sure
    Medium: what the operators compute follows from their names and from what they hand each other. What a fused
    operator saves is estimated as the share of the bytes that need not be read or written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at, last_parts
from diagnose.analyzers.common.loops import python_calls
from diagnose.model.intervals import EMPTY, Intervals
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.flow import Flow
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.dataflow.fusion import Unfused
    from diagnose.dataflow.graph import Graph

META = RuleMeta(
    id="unfused",
    kind="idle",
    order=145,
    host_order=99,
    legend=Legend("a fused operator was written out", "#8c6d31"),
    changes=("fused-attention",),
    needs=("data flow",),
    former=(("attention", "unfused-attention"),),
)
_MASKS = frozenset({"masked_fill", "where", "add"})
MIN_CALLS = 3  # operators that Python calls: fewer are a function of torch that consists of several


def _detect(flow: Flow) -> list[Avoidable]:
    return [_part(flow.found.graph, one) for one in flow.found.unfused if one.kind != "pointwise"]


def _part(graph: Graph, one: Unfused) -> Avoidable:
    from diagnose.dataflow.graph import base_name  # only a recorded data flow needs it

    named = one.kind if one.kind == "attention" else f"a {one.kind}"
    text = (
        f"At {at(one.work.line)} {len(one.work.operators)} operators a step compute {named}; "
        f"{percent(one.avoidable, 0)} of the bytes that they read and write are values that a fused operator keeps."
    )
    title = f"A {one.kind} is written out in single operators"
    if one.kind == "attention":
        title = "Attention runs as separate operators around a softmax"
    names = {base_name(graph.operators[i]) for i in one.work.operators}
    facts = {"kind": one.kind, "on_host": True, "has_mask": not names.isdisjoint(_MASKS)}
    return Avoidable(title, text, one.work, one.work.lines, facts, one.avoidable, "medium", one.products)


def _time(t: Tables, flow: Flow, one: Avoidable) -> Intervals:
    if one.joined and t.device_id >= 0:
        return EMPTY
    calls = python_calls(t, flow, (*one.work.operators, *one.joined))
    return last_parts(t, flow, one) if calls >= MIN_CALLS else EMPTY


_RULE = AvoidableRule(META, _detect, time_of=_time, shortens_gaps=False)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find
