"""Use the foreach implementation of the optimizer.

What it does
    Passes `foreach=True` to the optimizer. It then updates all tensors in a few launches. Use it on a GPU for
    optimizers without a fused implementation.

What to watch
    It needs memory for intermediate results of all tensors at once. On a CPU it makes steps slower.
"""

from __future__ import annotations

from diagnose.changes.common.optimizers import FOREACH_CLASSES, FUSED_CLASSES, Implementation, change_to
from diagnose.changes.patches import optimizers

FOREACH = Implementation(
    flag="foreach",
    classes=FOREACH_CLASSES,
    advised_for=lambda name: name in FOREACH_CLASSES and name not in FUSED_CLASSES,
    launches=(40, 12),
    fewer_passes=(0.0, 0.0),
    on_device=(0.5, 1.0),
    on_cpu=None,
    serves_own=True,
)
CHANGE = change_to(FOREACH, optimizers.foreach_optimizer)
