"""Fuse small kernels by compiling the model.

What it does
    Compiles the model, so that runs of small kernels become one, and the pauses between them go.

What to watch
    Compiling takes some seconds at the first step, and again for each new shape.
"""

from __future__ import annotations

from diagnose.changes.common.applies import to_a_model_of_the_script
from diagnose.changes.common.change import Advice, ByHand, Change, Patch, rounding
from diagnose.changes.patches import compiling

CHANGE = Change(
    id="fuse-kernels",
    title="Fuse small kernels by compiling the model",
    numerics=rounding("fused kernels round differently; compare the loss of the first steps"),
    patch=Patch(compiling.compile_model, needs_gpu=True, compiles=True, group="compile"),
    edit=ByHand("where the model is made only the script's author knows"),
    advice=Advice(
        before="model = Model().cuda()",
        after="model = torch.compile(Model().cuda())",
        least=0.2,
        most=0.7,
        needs="a compilation of some seconds at the start",
    ),
    applies=to_a_model_of_the_script,
    remedy="diagnose.kernels.compiling",
)
