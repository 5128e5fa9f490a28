"""Clip gradients within the update of AdamW.

What it does
    `FusedAdamW` replaces `torch.optim.AdamW` and clips during its update:
    `optimizer.step(grad_scale=clip_factor(model.parameters(), 1.0))`. This saves a pass over all gradients.

What to watch
    It needs Triton, AdamW without `amsgrad`, and clipping in every step. State dicts stay those of AdamW.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Change, EditLoop, Proposal, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _applies(program: Program, finding: Finding) -> bool:
    is_adamw = finding.facts.get("name") == "AdamW" and bool(finding.facts.get("has_device"))
    return is_adamw and bool(program.clips) and to_training(program, finding)


CHANGE = Change(
    id="clip-in-update",
    title="Clip the gradients and update all parameters in one launch",
    numerics=rounding("the order of roundings differs; the same to about 1e-6 after a step"),
    edit=EditLoop("with_fused_adamw", "device", "cuda", "from diagnose.kernels.ops.adamw import FusedAdamW"),
    proposal=Proposal(
        before="optimizer = torch.optim.AdamW(model.parameters(), lr=lr)\n...\n"
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\noptimizer.step()",
        after="from diagnose.kernels.ops.adamw import FusedAdamW, clip_factor\n\n"
        "optimizer = FusedAdamW(model.parameters(), lr=lr)   # the other arguments stay\n...\n"
        "optimizer.step(grad_scale=clip_factor(model.parameters(), 1.0))",
        least=0.4,
        needs="AdamW without amsgrad, and the package triton",
    ),
    applies=_applies,
    remedy="diagnose.kernels.ops.adamw",
)
