"""Keep images and convolutions in channels_last.

What it does
    `channels_last(model)` stores weights and images in the layout that convolution kernels use. Nothing is converted
    between layers any more.

What to watch
    Call it before the model is compiled or wrapped. An operator that returns the other layout brings conversions back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Patch, Proposal, rounding
from diagnose.changes.patches import memory

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    if not finding.facts["is_conversion"]:
        return None
    return Proposal(
        before="model = Model().cuda()\nfor images, labels in loader:\n    y = model(images.cuda())",
        after="from diagnose.kernels.layout import channels_last\n\n"
        "model = Model().cuda()\n"
        "print(channels_last(model))   # before it is compiled or wrapped; converts images as they enter the model",
        least=0.3,
    )


CHANGE = Change(
    id="channels-last",
    title="Keep images and convolutions in channels_last",
    numerics=rounding("convolutions of another layout round differently, and dropout of images drops other elements"),
    patch=Patch(memory.channels_last),
    proposal=_proposal,
    to_try=lambda work: work.is_of_convolutions,
    remedy="diagnose.kernels.layout",
)
