"""Send the largest gradients only.

What it does
    `install(ddp, "top_k", warm_up=1000)` sends the largest 5% of the gradients. The rest is added to the next step's.

What to watch
    The loss curve changes: batch norm, momentum and clipping see late gradients. Selecting costs about as much as a
    sort. Beyond 20 ranks nothing is gained.
"""

from __future__ import annotations

from diagnose.changes.common.change import Change, Patch, reduced
from diagnose.changes.common.gradients import late_gradients, up_to_ranks
from diagnose.changes.patches import distributed

CHANGE = Change(
    id="top-k-gradients",
    title="Send the largest gradients only (top-k with error feedback)",
    numerics=reduced("most gradients arrive steps later; compare the loss of the first thousand steps"),
    patch=Patch(distributed.top_k_gradients, group="hook"),
    proposal=late_gradients('"top_k", density=0.05, warm_up=1000'),
    applies=up_to_ranks(20),  # of a density of 0.05: each receives the bytes of all others
    remedy="diagnose.kernels.distributed.comm_hooks",
)
