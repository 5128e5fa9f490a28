"""Use a larger batch.

What it does
    Makes each launch do more: launching costs the same for it.

What to watch
    A larger batch trains differently; the learning rate goes with it.
"""

from __future__ import annotations

from diagnose.changes.common.change import Advice, ByHand, Change, other_training

CHANGE = Change(
    id="larger-batch",
    title="Use a larger batch: launching costs the same for it",
    numerics=other_training("a larger batch trains differently"),
    patch=ByHand("it changes training, which is the user's to decide"),
    edit=ByHand("it changes training, which is the user's to decide"),
    advice=Advice(
        before="DataLoader(dataset, batch_size=32)",
        after="DataLoader(dataset, batch_size=64)  # and the learning rate that goes with it",
    ),
    without_remedy="it changes training, which is the user's to decide",
)
