"""Operators compute what an earlier operator of the step has computed.

What it looks for
    Operators with the name, the attributes and the contents of an earlier one in the same step, neither of which
    anything changes in place: a model that is called twice on a batch, targets of a teacher for each minibatch, weights
    that are cast for each use. At least 3 % of the step. What a checkpoint computes again is the rule `recompute`.

Why it costs
    The same result takes the same time again, and if gradients are taken of it, its backward pass as well.

What to do
    Keep the first result and use it in both places.

How sure
    High: both are computed alike from the same values. Contents that are equal without that, perhaps by chance, do not
    count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables.flow import Flow

if TYPE_CHECKING:
    from diagnose.dataflow.repeats import ComputedAgain

META = RuleMeta(
    id="computed-again",
    kind="idle",
    order=138,
    host_order=63,
    legend=Legend("operators computed the same again", "#8a52c4"),
    changes=("reuse-result",),
    needs=("data flow",),
    former=(("repeated", "repeated-call"),),
)


def _detect(flow: Flow) -> list[Avoidable]:
    return [_part(one) for one in flow.found.computed_again if one.kind == "repeated" and one.is_certain]


def _part(one: ComputedAgain) -> Avoidable:
    if one.value_line == one.use_line:
        text = f"The step computes the same several times at {at(one.use_line)}."
    else:
        text = f"The step computes the same at {at(one.value_line)} and again at {at(one.use_line)}."
    title = "Operators compute again what the step has computed"
    lines = (one.use_line, one.value_line, *one.work.lines)
    return Avoidable(title, text, one.work, lines, {"kind": one.kind, "with_gradients": one.with_gradients})


_RULE = AvoidableRule(META, _detect)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find
