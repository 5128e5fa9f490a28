"""Compute in float32 instead of float64.

What it does
    Adds `.float()` to the inputs and removes `.double()`. This halves the bytes.

What to watch
    Solvers and long sums may need float64. A trial converts the model and the inputs of its forward.
"""

from __future__ import annotations

from diagnose.changes.common.change import Change, Patch, Proposal, reduced
from diagnose.changes.patches import precision

CHANGE = Change(
    id="single-precision",
    title="Compute in float32 instead of float64",
    numerics=reduced("numbers keep 7 digits instead of 16; compare the loss curve"),
    patch=Patch(precision.single_precision, group="autocast"),
    proposal=Proposal(
        before="x = torch.from_numpy(array)            # NumPy makes float64\nmodel = Model().double()",
        after="x = torch.from_numpy(array).float()    # or array.astype(numpy.float32), once\nmodel = Model()",
        least=0.5,
        needs="results that need no more than 7 digits",
    ),
)
