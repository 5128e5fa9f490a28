"""Send the signs of gradients.

What it does
    Installs a hook on DistributedDataParallel that sends one bit a gradient, and one magnitude for each block of 1024.
    What the signs lack is added to the next step's gradients.

What to watch
    Training takes another course: compare the loss of the first thousand steps. About six passes over the gradients,
    and every rank receives from every other: beyond 56 ranks nothing is gained.
"""

from __future__ import annotations

from diagnose.changes.common.change import Change, Patch, reduced
from diagnose.changes.common.gradients import late_gradients, up_to_ranks
from diagnose.changes.patches import distributed

MAX_ONE_BIT_RANKS = 56  # each receives the bytes of all others


CHANGE = Change(
    id="one-bit-gradients",
    title="Send the signs of gradients (one bit each, with error feedback)",
    numerics=reduced("signs replace gradients; compare the loss of the first thousand steps"),
    patch=Patch(distributed.one_bit_gradients, group="hook"),
    proposal=late_gradients('"one_bit", warm_up=1000'),
    applies=up_to_ranks(MAX_ONE_BIT_RANKS),
    remedy="diagnose.kernels.distributed.comm_hooks",
)
