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
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables

LEAST = 0.8  # of the unused end of the pass: the first function behind the last used gradient may be needed


def _effect(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect without the unused end of the pass, its kernels and the host's time for them."""
    import numpy as np

    from diagnose.replay.effects import effect_of_tasks
    from diagnose.tables.discarded_gradients import discarded_gradients

    found = discarded_gradients(t)
    if found is None:
        return None
    length = (t.tasks.end - t.tasks.start)[finding.tasks].astype(np.float64)
    return effect_of_tasks(
        t,
        finding,
        finding.tasks,
        (LEAST * length, length),
        f"Between {percent(LEAST, 0)} and all of the unused end of the backward pass goes away.",
        host=found.host,
        host_left=(1 - LEAST, 0.0),
        pauses_left=(1 - LEAST, 0.0),
        frees_host=True,
    )


CHANGE = Change(
    id="detach-inputs",
    title="Detach what the other model made: its gradients are cleared unused",
    numerics=identical(),
    advice=Advice(
        before="fake = generator(noise)\nloss = criterion(discriminator(fake), zeros)",
        after=(
            "fake = generator(noise)\nloss = criterion(discriminator(fake.detach()), zeros)   # the generator's own "
            "loss keeps `fake`\n# or make it under torch.no_grad(), where no other loss needs it"
        ),
        least=LEAST,
        most=1.0,
    ),
    applies=to_training,
    effect=_effect,
    patch=ByHand("which tensor leads to the other model only the script's author knows"),
    edit=ByHand("which tensor leads to the other model only the script's author knows"),
    without_remedy="torch has detach()",
)
