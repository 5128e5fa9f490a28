"""Operators repeat what an earlier operator of the step has computed.

What it looks for
    Operators with the name, attributes and contents of an earlier one in the same step. Examples: a model called twice
    on a batch, weights cast for each use. Also several backward passes through the same operators whose gradients are
    only added up, or that take gradients by one input after the other. Threshold: 3% of the step.

Why it costs
    The second computation costs the same again, with its backward pass.

What to do
    Keep the first result and use it in both places. Hand it to the layers that need it. Compute parametrized weights
    under `torch.nn.utils.parametrize.cached()`. Sum the losses and call `backward()` once. Hand all
    inputs to one `torch.autograd.grad`.

How sure
    High. Needs `diagnose trace`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from diagnose.analyzers.common.advice import Advice, identical, of_kind
from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at
from diagnose.analyzers.common.rewrite import Edits, cached, handed_on, hoisted, kept
from diagnose.analyzers.common.rewrite_blocks import one_backward
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
    changes=("reuse-result", "one-backward", "one-grad"),
    needs=("data flow",),
)
ADVICE = (
    Advice(
        id="one-grad",
        title="Take the gradients by all inputs in one call of torch.autograd.grad{there}",
        numerics=identical(),
        before="u = field(x, t)\n"
        "u_x = torch.autograd.grad(u.sum(), x, create_graph=True)[0]\n"
        "u_t = torch.autograd.grad(u.sum(), t, create_graph=True)[0]",
        after="u = field(x, t)\nu_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)",
        when=of_kind("gradients"),
        least=0.8,
    ),
)


def detect(flow: Flow) -> Iterator[Avoidable]:
    """Yield what is computed again for certain; what a checkpoint repeats is the rule `recompute`.

    Where the first result is not read, it can be left out: then nothing is computed again.
    """
    in_vain = {each.value_line for each in flow.found.dead_work if each.kind == "result"} - {None}
    for one in flow.found.computed_again:
        if one.kind == "backward":
            num, lines = len(one.starts), tuple(dict.fromkeys(one.starts))
            title = f"The backward pass runs {num} times through the same operators"
            through = f"{num} backward passes go through the same operators, and their gradients are added up"
            text = f"{through}: started at {' and '.join(map(at, lines))}."
            edits = one_backward(flow.source, [each for each in lines if each is not None])
            yield Avoidable(title, text, one.work, (*lines, *one.work.lines), {"kind": one.kind}, edits=edits)
        elif one.kind == "gradients":
            lines = tuple(dict.fromkeys(one.starts))
            title = "Gradients of the same outputs are taken by one input after the other"
            text = f"Each call walks through the same operators again: at {' and '.join(map(at, lines))}."
            yield Avoidable(title, text, one.work, (*lines, *one.work.lines), {"kind": one.kind})
        elif one.kind == "repeated" and one.is_certain and one.value_line not in in_vain:
            again = f"the same at {at(one.value_line)} and again at {at(one.use_line)}"
            if one.value_line == one.use_line:
                of = f" in {one.modules[0]}" if len(one.modules) == 1 and one.modules[0] else ""
                again = f"the same several times{of}, at {at(one.use_line)}"
            if len(one.modules) > 1 and one.inner is not None:
                again = f"the same in each of {', '.join(one.modules[:4])}, at {at(one.inner)}"
            title = "Operators compute again what the step has computed"
            lines = (one.use_line, one.value_line, *one.work.lines)
            facts: dict[str, object] = {
                "kind": one.kind,
                "with_gradients": one.with_gradients,
                "is_parametrized": one.is_parametrized,
            }
            yield Avoidable(
                title, f"The step computes {again}.", one.work, lines, facts, edits=_edits(flow.source, one)
            )


def _edits(source: OwnSource, one: ComputedAgain) -> Edits:
    """Return the user's statements with the result kept, in the form that what calls them has."""
    if one.value_line is None or one.use_line is None:
        return ()
    if one.is_parametrized:
        return cached(source, one.use_line) if one.value_line == one.use_line else ()
    if one.value_line != one.use_line:
        return kept(source, one.value_line, one.use_line, is_kept_first=one.is_kept_first) if one.callers else ()
    if not one.is_whole:
        return ()
    at = one.stack.index(one.use_line) if one.use_line in one.stack else 0
    for inner, caller in pairwise(one.stack[max(at - 1, 0) : at + 2]):  # the line is of the loop, or is called by it
        if handed := handed_on(source, inner, caller, one.modules):
            return handed
    return hoisted(source, one.use_line) if len(one.modules) == 1 else ()


_RULE = AvoidableRule(META, detect)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find
