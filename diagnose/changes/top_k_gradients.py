"""Send the largest gradients only.

What it does
    Installs a hook on DistributedDataParallel that sends one gradient in twenty, those of the largest magnitude,
    with their places. What is left out is added to the next step's gradients.

What to watch
    Training takes another course, and batch norm, momentum and clipping see late gradients: compare the loss of the
    first thousand steps. Selecting takes a pass over each bucket that costs about as much as a sort.
"""

from __future__ import annotations

from diagnose.changes.common.change import Change, Patch, reduced
from diagnose.changes.common.gradients import late_gradients, up_to_ranks
from diagnose.changes.patches import distributed

MAX_TOP_K_RANKS = 20  # of a density of 0.05: each receives the bytes of all others


CHANGE = Change(
    id="top-k-gradients",
    title="Send the largest gradients only (top-k with error feedback)",
    numerics=reduced("most gradients arrive steps later; compare the loss of the first thousand steps"),
    patch=Patch(distributed.top_k_gradients, group="hook"),
    proposal=late_gradients('"top_k", density=0.05, warm_up=1000'),
    applies=up_to_ranks(MAX_TOP_K_RANKS),
    remedy="diagnose.kernels.distributed.comm_hooks",
)
