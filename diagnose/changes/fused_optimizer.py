"""Use the fused implementation of the optimizer.

What it does
    Passes `fused=True` to the optimizer. A few launches then update all tensors in one pass over memory.

What to watch
    Adam, AdamW, SGD and Adagrad have it, for floating-point parameters.
"""

from __future__ import annotations

from diagnose.changes.common.optimizers import FUSED_CLASSES, Implementation, change_to
from diagnose.changes.patches import optimizers

FUSED = Implementation(
    flag="fused",
    classes=FUSED_CLASSES,
    advised_for=lambda name: name in FUSED_CLASSES,
    launches=(8, 2),
    fewer_passes=(0.0, 2 / 3),
    on_device=(0.5, 1.0),
    on_cpu=(0.6, 1.0),
)
CHANGE = change_to(FUSED, optimizers.fused_optimizer)
