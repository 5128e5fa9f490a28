"""Operators repeat what an earlier operator of the step has computed.

What it looks for
    Operators with the name, attributes and contents of an earlier one in the same step. Examples: a model called twice
    on a batch, weights cast for each use. Also several backward passes through the same operators whose gradients are
    only added up. Threshold: 3% of the step.

Why it costs
    The second computation costs the same again, with its backward pass.

What to do
    Keep the first result and use it in both places. Hand it to the layers that need it. Compute parametrized weights
    under `torch.nn.utils.parametrize.cached()`. Sum the losses and call `backward()` once.

How sure
    High. Needs `diagnose trace`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diagnose.analyzers.common.advice import Advice, identical, of_kind, rounding
from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at
from diagnose.analyzers.common.rewrite import NONE, Rewrite, cached, handed_on, hoisted, kept
from diagnose.dataflow.repeats import ComputedAgain
from diagnose.model.own_source import OwnSource
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables.flow import Flow

META = RuleMeta(
    id="computed-again",
    kind="idle",
    order=138,
    host_order=63,
    legend=Legend("operators computed the same again"),
    changes=("reuse-result", "one-backward"),
    needs=("data flow",),
)
_REUSE = Advice(
    id="reuse-result",
    title="Keep the result instead of computing it again{there}",
    numerics=identical(),
    before="{rewrite.before}",
    after="{rewrite.after}",
    needs="memory for the result, until its last use",
    least=0.6,  # what the calls share with the one that stays, as its derivatives, may grow by a part
    when=of_kind("repeated"),
)
_ADDED = rounding("gradients of one call are added in another order")
ADVICE = (
    Advice(
        id="one-backward",
        title="Call backward once, on the sum of the losses{there}",
        numerics=rounding("gradients are added in another order"),
        after="""losses = [criterion(head(features), y) for head, y in zip(heads, targets)]
torch.stack(losses).sum().backward()   # once, after the last of them: no retain_graph=True""",
        needs="memory for the graphs of all losses until then; no loss may use the gradients of another one",
        when=of_kind("backward"),
        least=0.8,
    ),
    replace(
        _REUSE,
        title="Compute parametrized weights once for all uses in a pass{there}",
        numerics=_ADDED,
        needs="weights that do not change within the block: no optimizer's step in it",
        when=lambda f, _: f.facts.get("is_parametrized"),
    ),
    replace(
        _REUSE,
        numerics=_ADDED,
        needs="memory for the result, until its last use; one backward pass for all that uses it, and before that no "
        "change in place of the result or the weights",
        when=lambda f, _: f.facts.get("with_gradients") and f.facts.get("kind") != "backward",
    ),
    _REUSE,
)


def detect(flow: Flow) -> Iterator[Avoidable]:
    """Yield what is computed again for certain; what a checkpoint repeats is the rule `recompute`."""
    for one in flow.found.computed_again:
        if one.kind == "backward":
            num, lines = len(one.starts), tuple(dict.fromkeys(one.starts))
            title = f"The backward pass runs {num} times through the same operators"
            through = f"{num} backward passes go through the same operators, and their gradients are added up"
            text = f"{through}: started at {' and '.join(map(at, lines))}."
            yield Avoidable(title, text, one.work, (*lines, *one.work.lines), {"kind": one.kind})
        elif one.kind == "repeated" and one.is_certain:
            again = f"the same at {at(one.value_line)} and again at {at(one.use_line)}"
            if one.value_line == one.use_line:
                again = f"the same several times at {at(one.use_line)}"
            if len(one.modules) > 1 and one.inner is not None:
                again = f"the same in each of {', '.join(one.modules[:4])}, at {at(one.inner)}"
            title = "Operators compute again what the step has computed"
            lines = (one.use_line, one.value_line, *one.work.lines)
            facts = {"kind": one.kind, "with_gradients": one.with_gradients, "is_parametrized": one.is_parametrized}
            facts["rewrite"] = _rewrite(flow.source, one) or NONE
            yield Avoidable(title, f"The step computes {again}.", one.work, lines, facts)


def _rewrite(source: OwnSource, one: ComputedAgain) -> Rewrite | None:
    """Return the user's statements with the result kept, in the form that what calls them has."""
    if one.value_line is None or one.use_line is None:
        return None
    if one.is_parametrized:
        return cached(source, one.value_line, one.use_line)
    if one.value_line != one.use_line:
        return kept(source, one.value_line, one.use_line, is_kept_first=one.is_kept_first) if one.callers else None
    if not one.is_whole:
        return None
    if one.inner is not None:
        return handed_on(source, one.inner, one.callers[0]) if one.callers else None
    return hoisted(source, one.use_line)


_RULE = AvoidableRule(META, detect)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find
