"""Leave out what reaches no parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Change, Proposal, identical, rounding
from diagnose.changes.common.statements import STATEMENTS, of_statements, there
from diagnose.model.locations import at_line, own_place

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _skip_frozen_proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    title = f"Leave weights out that are not trained{there(finding)}"
    needs = "averages that began as copies of the weights"
    return of_statements(finding.facts.get("edits"), title=title, needs=needs, least=0.8)


def _skip_zero_term_proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    title = f"Leave the term out while its coefficient is 0{there(finding)}"
    # The zeros that were added to other gradients are a part of it.
    return of_statements(finding.facts.get("edits"), title=title, least=0.8)


def _takes_gradients(program: Program, finding: Finding) -> bool:
    return finding.facts.get("kind") == "gradient" and to_training(program, finding)


def _detach_inputs_proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    facts, place = finding.facts, own_place(finding.where)
    at = f" at {at_line(place)}" if place else ""
    modules, needs = facts.get("modules"), ""
    title = "Detach what the other model made: nothing uses its gradients"
    if facts.get("is_frozen"):
        title = f"Freeze {modules} with requires_grad_(False): no optimizer updates them"
        if facts.get("has_no_rate"):
            title = f"Freeze {modules} with requires_grad_(False): their learning rate is 0"
        needs = "layers that come before all that train"
    elif facts.get("is_unused"):
        title = f"Freeze {modules} for the loss{at}, which does not train them"
    elif facts.get("ends_early"):
        title = "End the backward pass at the parameters: `loss.backward(inputs=list(model.parameters()))`"
    elif facts.get("is_asked"):
        title = f"Ask for gradients{at} only in steps that use them: no recorded step does"
        needs = "no reentrant checkpoint, which needs an input with a gradient"
    elif facts.get("below"):
        title = f"Run what is below {facts['below']} without gradients{at}: nothing there trains"
    # Of the unused functions of the pass the first may be needed.
    numerics = identical("if no other step uses them" if facts.get("is_asked") else "")
    return of_statements(facts.get("edits"), title=title, numerics=numerics, needs=needs, least=0.8)


_WHERE_READ = {
    "in branch": "Compute {names}{at} only in the branch that reads it, at line {reader}",
    "early": "Compute {names}{at} only if line {reader} is to run: test that condition first",
    "after": "Compute {names}{at} once, after the loop",
    "unread": "Leave out {names}{at}: nothing reads it after this call",
}


def _where_read_proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    facts, place = finding.facts, own_place(finding.where)
    at = f" at {at_line(place)}" if place else ""
    title = _WHERE_READ[str(facts["kind"])].format(names=facts["names"], at=at, reader=facts["reader"])
    numerics = identical() if facts["kind"] == "after" else identical("if nothing else reads it")
    return of_statements(facts.get("edits"), title=title, numerics=numerics, least=0.8)


CHANGES = (
    Change(
        id="compute-in-branch",
        page="""Compute a result in the branch that reads it.

What it does
    Moves statements into the branch that reads what they make, such as the score that every tenth step prints. If they
    are in another function than the branch, or a loop or condition is to be rearranged, you edit the script.

What to watch
    A statement that draws random numbers draws fewer.
""",
        title="Compute a result in the branch that reads it",
        numerics=identical("if nothing else reads it"),
        edit=STATEMENTS,
        proposal=_where_read_proposal,
        applies=lambda _, finding: finding.facts.get("kind") in _WHERE_READ,
    ),
    Change(
        id="skip-frozen",
        page="""Keep no average of weights that never change.

What it does
    Skips parameters that are not trained in the loop that averages a model: `if weight.requires_grad:`. Their average
    is what they are.

What to watch
    The averaged model must start as a copy of the model. Set `requires_grad` before the loop, not during training.
""",
        title="Leave weights out that are not trained",
        numerics=rounding("averages of frozen weights are no longer rounded"),
        edit=STATEMENTS,
        proposal=_skip_frozen_proposal,
        applies=lambda _, finding: finding.facts.get("kind") == "unchanged",
    ),
    Change(
        id="skip-zero-term",
        page="""Leave a term out while its coefficient is 0.

What it does
    Changes `loss + weight * penalty(x)` to `loss + weight * penalty(x) if weight != 0 else loss`. If the term is
    computed in another line, you edit the script.

What to watch
    Parameters that only the term uses then get no gradient, instead of zeros. Weight decay and momentum no longer
    change them. DistributedDataParallel needs `find_unused_parameters=True`.
""",
        title="Leave the term out while its coefficient is 0",
        numerics=identical("unless the term is infinite, or the only use of a parameter"),
        edit=STATEMENTS,
        proposal=_skip_zero_term_proposal,
        applies=lambda _, finding: finding.facts.get("kind") == "zero factor",
    ),
    Change(
        id="detach-inputs",
        page="""End gradients above layers that do not train.

What it does
    Detaches what another model made, or runs frozen layers under `torch.no_grad()`. Freezes parameters that no
    optimizer updates, or whose learning rate is 0.

What to watch
    Detach only if the other model's optimizer does not step on this loss. A reentrant checkpoint needs an input with a
    gradient.
""",
        title="Detach what the other model made: nothing uses its gradients",
        numerics=identical(),
        edit=STATEMENTS,
        proposal=_detach_inputs_proposal,
        applies=_takes_gradients,
    ),
)
