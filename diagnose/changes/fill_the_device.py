"""Let each call do more.

What it does
    Runs many small problems in one batched call, or takes a larger batch, so that a kernel's grid fills the device.

What to watch
    A batched call needs problems of one size; a larger batch trains differently.
"""

from __future__ import annotations

from diagnose.changes.common.change import Advice, ByHand, Change, other_training

CHANGE = Change(
    id="fill-the-device",
    title="Let each call do more: a larger batch, or many small problems in one batched call",
    numerics=other_training("a batched kernel rounds differently, a larger batch trains differently"),
    patch=ByHand("which calls can be one only the script's author knows"),
    edit=ByHand("which calls can be one only the script's author knows"),
    advice=Advice(
        before="outputs = [x @ w for x, w in zip(inputs, weights)]",
        after="outputs = torch.bmm(torch.stack(inputs), torch.stack(weights)).unbind()",
        needs="problems of one size, or memory for a larger batch",
    ),
    without_remedy="one call in place of another of torch",
)
