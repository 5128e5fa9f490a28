"""Run the forward under float16 autocast, with a GradScaler.

What it does
    Does the same as `autocast` on devices without bfloat16. A `GradScaler` scales the loss, so that small gradients do
    not vanish.

What to watch
    Steps whose gradients overflow are skipped. A trial needs one optimizer and one scalar loss per `backward()`.
"""

from __future__ import annotations

from diagnose.changes.common.change import Change, Patch, reduced
from diagnose.changes.patches import precision

CHANGE = Change(
    id="autocast-fp16",
    title="Run the model under fp16 autocast, with a GradScaler",
    numerics=reduced("16-bit products round, and steps whose gradients overflow are skipped; compare the loss curve"),
    patch=Patch(precision.autocast_fp16, needs_gpu=True, group="autocast"),
    remedy="diagnose.kernels.precision",
)
