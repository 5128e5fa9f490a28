"""Leave out fills of buffers that are written anyway.

What it does
    Sets gradients to None instead of zero, and makes buffers with `empty` where all of them is written.

What to watch
    Code that reads a gradient before the first backward finds None.
"""

from __future__ import annotations

from diagnose.changes.common.change import Advice, ByHand, Change, identical

CHANGE = Change(
    id="no-fills",
    title="Let gradients be set to None, and make buffers that are written anyway with empty",
    numerics=identical("where all of the buffer is written"),
    patch=ByHand("whether all of a buffer is written only the script's author knows"),
    edit=ByHand("whether all of a buffer is written only the script's author knows"),
    advice=Advice(
        before="optimizer.zero_grad(set_to_none=False)\nout = torch.zeros(shape, device=device)",
        after="optimizer.zero_grad(set_to_none=True)\nout = torch.empty(shape, device=device)  # all is written",
    ),
    without_remedy="one call in place of another of torch",
)
