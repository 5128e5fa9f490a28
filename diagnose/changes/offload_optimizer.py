"""Keep the optimizer's state in host memory between steps.

What it does
    `offload_optimizer_state(optimizer)` moves the state to pinned memory after each update, and back before the next.

What to watch
    Both copies lengthen the step. If you call `state.fetch()` earlier, the second one is overlapped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.common.memory import OPTIMIZER, copied_ns, held
from diagnose.changes.patches import memory

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    return Proposal(
        before="optimizer = torch.optim.AdamW(model.parameters(), lr=lr)   # or another",
        after="from diagnose.kernels.offload import offload_optimizer_state\n\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=lr)   # as it is\n"
        "state = offload_optimizer_state(optimizer)",
        needs="pinned memory on the host for the state, and the time of two copies a step",
        frees_bytes=held(finding, OPTIMIZER),
        costs_ns=copied_ns(finding, held(finding, OPTIMIZER), hidden=False),
    )


CHANGE = Change(
    id="offload-optimizer",
    title="Keep the optimizer's state in host memory between steps",
    numerics=identical(),
    patch=Patch(memory.offload_optimizer, needs_gpu=True, group="optimizer"),
    proposal=_proposal,
    applies=to_training,
    remedy="diagnose.kernels.offload",
)
