"""The step computes results that nothing uses.

What it looks for
    Operators whose results reach no parameter, later step, collective or Python code. Examples: unread metrics, heads
    without a loss, gradients that are cleared unused, a term times a coefficient of 0. Threshold: 3% of the step.

Why it costs
    A loss that goes through a second model also computes that model's gradients.

What to do
    Remove the work, or run it only in the steps that read it. Leave a term out while its coefficient is 0. Call
    `detach()` on the output of a model that the loss must not train. Freeze parameters with `requires_grad_(False)`.

How sure
    High, unless only other steps read the result, such as every hundredth. Needs `diagnose trace`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diagnose.analyzers.common.advice import Advice, identical, in_training, of_kind
from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at
from diagnose.model.diagnosis import Confidence
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables.flow import Flow

META = RuleMeta(
    id="dead-work",
    kind="idle",
    order=136,
    host_order=61,
    legend=Legend("operators computed what nothing uses", "#c0703a"),
    changes=("skip-zero-term", "detach-inputs", "compute-less-often"),
    needs=("data flow",),
    former=(("gradient", "discarded-gradients"), ("result", "work-without-gradients")),
)
_DETACH = Advice(
    id="detach-inputs",
    title="Detach what the other model made: its gradients are cleared unused",
    numerics=identical(),
    before="fake = generator(noise)\nloss = criterion(discriminator(fake), zeros)",
    after="""fake = generator(noise)
loss = criterion(discriminator(fake.detach()), zeros)   # the generator's own loss keeps `fake`
# or make it under torch.no_grad(), where no other loss needs it""",
    watch="Detach only where that model's own optimizer does not step on this loss.",
    when=lambda f, p: f.facts.get("kind") not in ("result", "zero factor") and in_training(f, p),
    least=0.8,  # of the unused functions of the pass: the first of them may be needed
)
ADVICE = (
    Advice(
        id="skip-zero-term",
        title="Leave the term out while its coefficient is 0{there}",
        numerics=identical("if the term is finite, and no parameter gets gradients from it only"),
        after="""loss = criterion(outputs, y)
if coefficient != 0:   # the term is computed only if it counts
    loss = loss + coefficient * penalty(outputs)""",
        watch="Parameters that only the term uses then get no gradient, instead of zeros: weight decay and momentum no "
        "longer change them, and DistributedDataParallel needs `find_unused_parameters=True`.",
        when=of_kind("zero factor"),
        least=0.8,  # the zeros that were added to other gradients are a part of them
    ),
    replace(
        _DETACH,
        title="Freeze the layers that no optimizer updates, or run them without gradients",
        before="",
        after="""model.requires_grad_(False)            # the layers that no optimizer has; then those that train:
model.layer.requires_grad_(True)
# or call the frozen part under torch.no_grad()""",
        needs="layers that come before all that train",
        when=lambda f, p: f.facts.get("is_frozen") and in_training(f, p),
    ),
    _DETACH,
)


def detect(flow: Flow) -> Iterator[Avoidable]:
    """Yield gradients that nothing reads, terms that are multiplied by zero, and other results that nothing reads."""
    for one in flow.found.dead_work:
        if one.parameters:
            title = "The backward pass computes gradients of parameters that no optimizer updates"
            more = f" and {len(one.parameters) - 1:,} more parameters" if len(one.parameters) > 1 else ""
            text = (
                f"The backward pass of {at(one.value_line)} computes gradients of {one.parameters[0]}{more}, and no "
                "optimizer updates them."
            )
        elif one.kind == "gradient":
            title = "The backward pass goes on into operators whose gradients nothing uses"
            used, made = at(one.use_line), at(one.value_line)
            text = f"Gradients go from {used} back through {made}, and no optimizer reads them."
        elif one.kind == "zero factor":
            title = "Operators compute a term that is multiplied by zero"
            text = f"What {at(one.value_line)} computes is multiplied by zero at {at(one.use_line)}."
            if one.value_line == one.use_line:
                text = f"{at(one.use_line).capitalize()} multiplies what it computes by zero."
        else:
            title = "Operators compute a result that nothing uses"
            text = f"Nothing reads what {at(one.value_line)} makes."
        is_first = one.kind == "gradient" or one.value_line not in one.work.lines
        lines = (one.value_line, *one.work.lines) if is_first else one.work.lines
        lines = (one.use_line, *lines) if one.kind == "zero factor" else lines
        facts = {"kind": one.kind, "draws": one.draws} | ({"is_frozen": True} if one.parameters else {})
        sure: Confidence = "high" if one.is_certain else "low"
        yield Avoidable(title, text, one.work, lines, facts, one.avoidable, sure, with_inner=one.with_inner)


_RULE = AvoidableRule(META, detect)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find
