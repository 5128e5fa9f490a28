"""Send the signs of gradients.

What it does
    `install(ddp, "one_bit", warm_up=1000)` sends one bit per gradient and one magnitude per 1,024. The error is added
    to the next step's gradients.

What to watch
    The loss curve changes. It costs about six passes over the gradients. Beyond 56 ranks nothing is gained.
"""

from __future__ import annotations

from diagnose.changes.common.change import Change, Patch, reduced
from diagnose.changes.common.gradients import late_gradients, up_to_ranks
from diagnose.changes.patches import distributed

CHANGE = Change(
    id="one-bit-gradients",
    title="Send the signs of gradients (one bit each, with error feedback)",
    numerics=reduced("signs replace gradients; compare the loss of the first thousand steps"),
    patch=Patch(distributed.one_bit_gradients, group="hook"),
    proposal=late_gradients('"one_bit", warm_up=1000'),
    applies=up_to_ranks(56),  # each receives the bytes of all others
    remedy="diagnose.kernels.distributed.comm_hooks",
)
