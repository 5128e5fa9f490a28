"""Clip gradients within the update of AdamW.

What it does
    Updates all parameters in one launch, which multiplies the gradients by the clip factor as it reads them: clipping
    makes no pass over the gradients of its own.

What to watch
    State dicts are those of torch's AdamW without amsgrad. Only where gradients are clipped in every step. For 200
    tensors a step with clipping took an H100 2.7 ms where `fused=True` took 2.9 (of 1000 numbers each, which the host
    limits), and 4.1 ms where it took 5.0 (of a million each).
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
