"""Send bytes and convert on the device.

What it does
    Copies inputs in the type in which they are stored, and converts them where they are used.

What to watch
    Inputs that are floats at first gain nothing. A recording does not show what they were, so nothing is predicted.
"""

from __future__ import annotations

from diagnose.changes.common.change import Advice, ByHand, Change, rounding

CHANGE = Change(
    id="send-less",
    title="Send bytes and convert on the device",
    numerics=rounding("the conversion rounds on the device"),
    patch=ByHand("what the script sends, and how it converts it, is its own code"),
    edit=ByHand("which line converts the inputs only the script's author knows"),
    advice=Advice(
        before="images = images.float().div(255).to(device)",
        after="images = images.to(device, non_blocking=True).float().div(255)  # uint8 over the link: a quarter",
        least=0.0,
        most=0.0,  # bytes are a quarter of float32, but whether they were bytes at first no recording shows
        needs="inputs that are bytes at first, such as images",
    ),
    without_remedy="what a script sends is its own",
)
