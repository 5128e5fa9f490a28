"""The backward pass goes back through earlier steps.

What it looks for
    Backward operators whose forward ran in an earlier step. Threshold: 2% of the step.

Why it costs
    A value from an earlier step still carries its graph. Examples: a hidden state, a running loss.

What to do
    Call `detach()` on values that pass from one step to the next. If their gradient is needed, compute them in each
    step.

How sure
    High. Needs `diagnose trace`.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.analyzers.common.advice import Advice, in_training, other_training
from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables.flow import Flow

META = RuleMeta(
    id="kept-graph",
    kind="idle",
    order=124,
    host_order=57,
    legend=Legend("the backward pass went through earlier steps"),
    changes=("detach-state",),
    needs=("data flow",),
)
ADVICE = (
    Advice(
        id="detach-state",
        title="Detach what one step hands to the next: the backward pass ends there",
        numerics=other_training("gradients no longer reach earlier steps"),
        before="""state = torch.zeros(())   # before the loop
state = 0.9 * state + model(batch)
state.mean().backward(retain_graph=True)""",
        after="""state = torch.zeros(())   # before the loop
state = 0.9 * state.detach() + model(batch)   # the graph of earlier steps ends here
state.mean().backward()""",
        watch="If gradients of earlier steps are wanted, detach every so many steps (truncated backpropagation).",
        when=in_training,
        least=0.8,  # of the functions of earlier steps: one that leads to a parameter may be computed in each step
    ),
)


def detect(flow: Flow) -> Iterator[Avoidable]:
    """Yield the lines that read what carries the graph of an earlier step."""
    for one in flow.found.kept_graph:
        num = f"{len(one.work.operators)} of {one.num_operators} operators of the backward pass"
        text = f"{num} are of a forward that ran in earlier steps; {at(one.value_line)} reads what carries their graph."
        title = "The backward pass goes back through earlier steps"
        yield Avoidable(title, text, one.work, (one.value_line, *one.work.lines), {"kind": "kept graph"})


_RULE = AvoidableRule(META, detect, min_share=0.02)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find
