"""Attention, a norm, a loss, an activation or a matrix of distances is written out in single operators.

What it looks for
    Pointwise operators and reductions in the script that together compute one of these, or a rotary embedding. On a
    GPU, `unfused-attention` reports attention. Also a matrix that compares all pairs of a vector's elements, to sum
    over those that come before. Threshold: a saving of 3% of the step.

Why it costs
    Each operator reads and writes whole tensors, and the backward pass keeps every intermediate result.

What to do
    Call the fused operator: `F.scaled_dot_product_attention`, `F.layer_norm`, `F.rms_norm`, `F.cross_entropy`,
    `F.gelu(x, approximate="tanh")`, `F.glu` or `torch.cdist`. Or compile the function. For sums over those that come
    before: sort once, and use `cumsum` or `torch.logcumsumexp`.

How sure
    Medium: the formula is inferred from the operators. Needs `diagnose trace`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diagnose.analyzers.common.advice import Advice, of_kind, rounding
from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at, last_parts, python_calls
from diagnose.analyzers.common.written_norm import Norm, call_facts, norm_of
from diagnose.model.diagnosis import Facts, Finding
from diagnose.model.intervals import EMPTY, Intervals
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.flow import Flow
from diagnose.text.numbers import percent

META = RuleMeta(
    id="unfused",
    kind="idle",
    order=145,
    host_order=99,
    legend=Legend("a fused operator was written out"),
    changes=("fused-attention", "fused-norm", "matrix-of-distances", "cumulate-sorted"),
    needs=("data flow",),
)
ADVICE = (
    Advice(
        id="fused-norm",
        title="Call {call.operator} for the norm over {call.over}{at}",
        numerics=rounding("the operator adds in another order, in float32; compare the loss of the first steps"),
        before="{call.before}",
        after="{call.after}",
        needs="{call.needs}",
        watch="F.group_norm(x, 1) differs from F.layer_norm over the channels: its mean is over height and width too.",
        when=lambda f, _: f.facts.get("call"),
        least=0.7,  # torch's operator reads and writes more than one pass does: casts, sums for the weights
    ),
    Advice(
        id="matrix-of-distances",
        title="Call torch.cdist instead of taking the differences of all pairs{there}",
        numerics=rounding("a product loses digits of small distances; compute_mode chooses another way"),
        before="distances = (x[:, None] - y[None]).pow(2).sum(-1)",
        after="distances = torch.cdist(x, y).square()  # for the nearest ones the roots do as well",
        needs="differences that nothing else reads",
        when=of_kind("matrix of distances"),
        least=0.5,  # of few columns, and of absolute differences
    ),
    Advice(
        id="cumulate-sorted",
        title="Use a cumulative operator on the sorted vector instead of a matrix of all pairs{there}",
        numerics=rounding("sums are taken in another order"),
        after="order = torch.argsort(key, descending=True)   # row i has the j with key[j] >= key[i]\n"
        "before = torch.logcumsumexp(score[order], dim=0)   # or cumsum, cummax\n"
        "reduced = torch.empty_like(before).index_copy(0, order, before)",
        needs="no equal keys, or the last row of those that are equal",
        when=of_kind("pairs"),
        least=0.8,
    ),
)


def detect(flow: Flow) -> Iterator[Avoidable]:
    """Yield what is written out, but for runs of pointwise operators."""
    masked = set[int]()
    for each in flow.found.order_masks:
        title = "A matrix of all pairs computes sums over those that come before"
        text = f"At {at(each.work.line)} {each.length:,} numbers are compared with each other, and {each.length:,} × "
        text += f"{each.length:,} are reduced: each row over a prefix of the sorted numbers."
        yield Avoidable(title, text, each.work, each.work.lines, {"kind": "pairs", "on_host": True})
        masked |= {*each.work.operators}
    for one in flow.found.unfused:
        if one.kind == "pointwise" or not masked.isdisjoint(one.work.operators):
            continue
        is_attention = one.kind == "attention"
        text = (
            f"At {at(one.work.line)} {len(one.work.operators)} operators a step compute "
            f"{one.kind if is_attention else f'a {one.kind}'}; {percent(one.avoidable, 0)} of the bytes that they read "
            "and write are values that a fused operator keeps."
        )
        title = f"A {one.kind} is written out in single operators"
        if is_attention:
            title = "Attention runs as separate operators around a softmax"
        facts: Facts = {"kind": one.kind, "on_host": True}
        if one.kind == "norm":
            facts = {**facts, "norm": norm_of(flow.found.graph.flow, one.work.operators)}
        yield Avoidable(title, text, one.work, one.work.lines, facts, one.avoidable, "medium", one.products)


def spared(t: Tables, flow: Flow, one: Avoidable) -> Intervals:
    """Return the last part of each operator; beside a device the rule `unfused-attention` has attention's."""
    if one.joined and t.device_id >= 0:
        return EMPTY
    calls = python_calls(t, flow, (*one.work.operators, *one.joined))
    fewest = 2 if one.facts.get("kind") == "matrix of distances" else 3  # of fewer torch may have made one function
    return last_parts(t, flow, one) if calls >= fewest else EMPTY


_RULE = AvoidableRule(META, detect, time_of=spared, shortens_gaps=False)
claim, claim_host = _RULE.claim, _RULE.claim_host


def find(t: Tables) -> list[Finding]:
    """Name what is written out, and of a norm the call in its place."""
    found = []
    for each in _RULE.find_in_each(t):
        norm = each.facts.get("norm")
        call = call_facts(norm, each.where) if isinstance(norm, Norm) else {}
        found.append(replace(each, facts={**each.facts, "norm": None, "call": call}))
    return found
