"""Keep activations in host memory until the backward pass needs them.

What it does
    Runs the forward under `with ActivationOffload():`. Saved tensors are copied to pinned memory, and back before the
    backward needs them.

What to watch
    If the copies take longer than the computation, the step waits for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.common.memory import ACTIVATIONS, copied_ns, held
from diagnose.changes.patches import memory

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    return Proposal(
        before="loss = criterion(model(x), y)",
        after="from diagnose.kernels.offload import ActivationOffload\n\noffload = ActivationOffload()\n"
        "with offload:\n    loss = criterion(model(x), y)",
        needs="pinned memory on the host, and a link that keeps up with the step",
        frees_bytes=held(finding, ACTIVATIONS),
        spares_samples=True,
        costs_ns=copied_ns(finding, held(finding, ACTIVATIONS), hidden=True),
    )


CHANGE = Change(
    id="offload-activations",
    title="Keep activations in host memory until the backward pass",
    numerics=identical(),
    patch=Patch(memory.offload_activations, needs_gpu=True),
    proposal=_proposal,
    applies=to_training,
    remedy="diagnose.kernels.offload",
)
