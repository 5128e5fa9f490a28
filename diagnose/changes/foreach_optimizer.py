"""Use the foreach implementation of the optimizer.

What it does
    Updates all tensors with a few launches for each operation. It spares launches, not passes over memory.

What to watch
    For classes without a fused implementation. It needs memory for intermediate results of all tensors at once. On a
    CPU there are no launches to spare, and that memory costs more than it saves: Adadelta of a ResNet took 2 to 12 ms
    longer for each of its steps of 40 ms.
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
