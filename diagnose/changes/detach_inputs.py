"""Detach what another model made.

What it does
    The backward pass ends at the detached tensor, and gradients that would be cleared unused are not computed.

What to watch
    Detach only where that model's own optimizer does not step on this loss: a generator's loss needs the gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

MIN_SAVED_SHARE = 0.8  # of the unused functions of the pass: the first of them may be needed


_DETACHED = """fake = generator(noise)
loss = criterion(discriminator(fake.detach()), zeros)   # the generator's own loss keeps `fake`
# or make it under torch.no_grad(), where no other loss needs it"""
_FROZEN = """model.requires_grad_(False)            # the layers that no optimizer has; then those that train:
model.layer.requires_grad_(True)
# or call the frozen part under torch.no_grad()"""


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    if finding.facts.get("kind") == "result":
        return None
    if finding.facts.get("is_frozen"):
        return Advice(
            title="Freeze the layers that no optimizer updates, or run them without gradients",
            after=_FROZEN,
            least=MIN_SAVED_SHARE,
            needs="layers that come before all that train",
        )
    before = "fake = generator(noise)\nloss = criterion(discriminator(fake), zeros)"
    return Advice(before=before, after=_DETACHED, least=MIN_SAVED_SHARE)


CHANGE = Change(
    id="detach-inputs",
    title="Detach what the other model made: its gradients are cleared unused",
    numerics=identical(),
    advice=_advice,
    applies=to_training,
    patch=ByHand("which tensor leads to the other model only the script's author knows"),
    edit=ByHand("which tensor leads to the other model only the script's author knows"),
    without_remedy="torch has detach()",
)
