"""Wait for another stream just before its result is used.

What it does
    Moves the wait behind work that does not need the other stream.

What to watch
    Every use of the result has to come after the wait.
"""

from __future__ import annotations

from diagnose.changes.common.change import Advice, ByHand, Change, identical

CHANGE = Change(
    id="wait-later",
    title="Wait for the other stream just before its result is used",
    numerics=identical("as long as every use comes after the wait"),
    patch=ByHand("which work does not need the other stream only the script's author knows"),
    edit=ByHand("which work does not need the other stream only the script's author knows"),
    advice=Advice(
        before="torch.cuda.current_stream().wait_stream(side)\nhidden = block(x)\ny = hidden + fetched",
        after="hidden = block(x)   # needs nothing of the other stream\n"
        "torch.cuda.current_stream().wait_stream(side)\ny = hidden + fetched",
        needs="work that does not depend on the other stream",
    ),
    without_remedy="two calls of torch in another order",
)
