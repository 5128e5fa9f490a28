"""Compute once what a step computes again: a result, and the backward pass of several losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Proposal, identical, rounding
from diagnose.changes.common.statements import STATEMENTS, of_statements, there

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

ADDED = rounding("gradients of one call are added in another order")
KEPT = "memory for the result, until its last use"


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    facts = finding.facts
    title, needs = "Keep the result instead of computing it again", KEPT
    if facts.get("kind") == "constant":
        title, needs = "Compute it once, before the steps, and keep the result", "memory for the result"
        if facts.get("is_part") and not facts.get("edits"):
            title = "Keep what is the same in each step, and make only the rest of the line again"
        if facts.get("cache"):
            title = f"Ask {facts['cache']} for the key that it is filled under"
    elif facts.get("is_parametrized"):
        title = "Compute parametrized weights once for all uses in a pass"
        needs = "weights that do not change within the block: no optimizer's step in it"
    elif facts.get("with_gradients"):
        needs = f"{KEPT}; one backward pass for all that uses it, and before that no change in place of the result or "
        needs += "the weights"
    is_added = facts.get("is_parametrized") or facts.get("with_gradients")
    return of_statements(
        facts.get("edits"),
        title=title + there(finding),
        numerics=ADDED if is_added else identical(),
        needs=needs,
        least=0.6,  # what the calls share with the one that stays, as its derivatives, may grow by a part
    )


def _one_backward_proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    title = f"Call backward once, on the sum of the losses{there(finding)}"
    needs = "memory for the graphs of all losses until then; no loss may use the gradients of another one"
    return of_statements(finding.facts.get("edits"), title=title, needs=needs, least=0.8)


CHANGES = (
    Change(
        id="reuse-result",
        page="""Keep a result instead of computing it again.

What it does
    Uses the first result in both places: under its name, as an argument of the layers that need it, or made before the
    loop. What is the same in each step is made before the steps, and a cache gets the key that it is filled under.
    Parametrized weights are computed once within `torch.nn.utils.parametrize.cached()`.

What to watch
    The result takes memory until its last use. With gradients, all uses need one backward pass, and nothing may change
    the result or the weights in place before it.
""",
        title="Keep the result instead of computing it again",
        numerics=identical(),
        edit=STATEMENTS,
        proposal=_proposal,
        applies=lambda _, finding: finding.facts.get("kind", "repeated") in ("repeated", "constant"),
    ),
    Change(
        id="one-backward",
        page="""Run one backward pass for several losses.

What it does
    Adds the losses up and calls `backward()` once. Each pass goes through all that the losses share.

What to watch
    All graphs are kept until then. No loss may use the gradients of another one.
""",
        title="Call backward once, on the sum of the losses",
        numerics=rounding("gradients are added in another order"),
        edit=STATEMENTS,
        proposal=_one_backward_proposal,
        applies=lambda _, finding: finding.facts.get("kind") == "backward",
    ),
)
