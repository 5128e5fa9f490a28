"""Detach what one step hands to the next.

What it does
    The graph of earlier steps ends at the detached value, and the backward pass goes through this step only.

What to watch
    Gradients no longer reach earlier steps. If they are wanted, detach every so many steps (truncated backpropagation
    through time).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Advice, ByHand, Change, other_training

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

MIN_SAVED_SHARE = 0.8  # of the functions of earlier steps: one that leads to a parameter may be computed in each step


def _advice(_finding: Finding, _step_ns: float, _program: Program) -> Advice:
    return Advice(
        before="state = torch.zeros(())   # before the loop\n"
        "state = 0.9 * state + model(batch)\n"
        "state.mean().backward(retain_graph=True)",
        after="state = torch.zeros(())   # before the loop\n"
        "state = 0.9 * state.detach() + model(batch)   # the graph of earlier steps ends here\n"
        "state.mean().backward()",
        least=MIN_SAVED_SHARE,
    )


CHANGE = Change(
    id="detach-state",
    title="Detach what one step hands to the next: the backward pass ends there",
    numerics=other_training("gradients no longer reach earlier steps"),
    advice=_advice,
    applies=to_training,
    patch=ByHand("which value leads to earlier steps only the script's author knows"),
    edit=ByHand("which value leads to earlier steps only the script's author knows"),
    without_remedy="torch has detach()",
)
