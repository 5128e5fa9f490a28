"""Select the fastest cuDNN algorithms by benchmark.

What it does
    Sets `torch.backends.cudnn.benchmark = True`. cuDNN then times its algorithms once per shape and keeps the fastest.

What to watch
    If shapes keep changing, each new one is timed again.
"""

from __future__ import annotations

from diagnose.changes.common.change import AddStatement, Change, Patch, rounding
from diagnose.changes.patches import precision

CHANGE = Change(
    id="cudnn-benchmark",
    title="Select the fastest cuDNN algorithms by benchmark",
    numerics=rounding("other algorithms round differently; compare the loss of the first steps"),
    patch=Patch(precision.benchmark_convolutions, needs_gpu=True),
    edit=AddStatement(
        "torch.backends.cudnn.benchmark = True", ("cudnn.benchmark", "cudnn.deterministic", "deterministic_algorithms")
    ),
)
