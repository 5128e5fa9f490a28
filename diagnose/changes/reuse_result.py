"""Compute it once, and use the result again.

What it does
    Leaves out calls whose result is there already, and what follows from them in the backward pass.

What to watch
    A result that several losses use serves one backward pass, which frees what it needs: add the losses up, and call
    `backward()` once, before the optimizer's step. Where gradients are taken of it, neither the result nor the weights
    may be changed in place before that; a copy helps only a result without gradients, such as that of a teacher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import at_line, own_place
from diagnose.changes.common.change import Advice, ByHand, Change, identical, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

MIN_SAVED_SHARE = 0.6  # of the calls: what they share with the one that stays, as its derivatives, may grow by a part
_NEEDS_OF_GRADIENTS = (
    "memory for the result, until its last use; one backward pass for all that uses it, and before that no change in "
    "place of the result or the weights"
)
_WITHOUT = """with torch.no_grad():
    targets = teacher(x)               # once, before the loop over the minibatches
for rows in torch.randperm(len(x)).split(32):
    loss = criterion(model(x[rows]), targets[rows])"""
_WITH = """outputs = model(x)                   # once; the loss and all that is computed of the outputs use it
loss = criterion(outputs, y)
hits = outputs.detach().argmax(1) == labels
loss.backward()                      # once, of the sum of all losses: it frees what the outputs need
# derivatives: all that are wanted of one call
# u_x, u_t = torch.autograd.grad(u, (x, t), torch.ones_like(u), create_graph=True)"""


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    place = own_place(finding)
    at = f" ({at_line(place)})" if place else ""
    with_gradients = bool(finding.facts.get("with_gradients"))
    return Advice(
        title=f"Keep the result instead of computing it again{at}",
        before=(place.code or "") if place else "",
        after=_WITH if with_gradients else _WITHOUT,
        least=MIN_SAVED_SHARE,
        needs=_NEEDS_OF_GRADIENTS if with_gradients else "memory for the result, until its last use",
        numerics=rounding("gradients of one call are added in another order") if with_gradients else identical(),
    )


CHANGE = Change(
    id="reuse-result",
    title="Compute it once, and use the result again",
    numerics=identical("up to the order in which gradients are added"),
    advice=_advice,
    patch=ByHand("where the result is kept only the script's author knows"),
    edit=ByHand("where the result is kept only the script's author knows"),
    without_remedy="a line of the script's own",
)
