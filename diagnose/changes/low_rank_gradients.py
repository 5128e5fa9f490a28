"""Send gradients as products of thin matrices.

What it does
    `install(ddp, "power_sgd", rank=2, warm_up=1000)` sends each matrix of gradients as two thin ones. The error is
    added to the next step's gradients.

What to watch
    The loss curve changes. The errors need as much memory as the gradients. `try_hooks` measures which hook keeps the
    loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Patch, Proposal, reduced
from diagnose.changes.common.gradients import is_a_reduction, is_costly, to_large_gradients
from diagnose.changes.patches import distributed

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _proposal(finding: Finding, step_ns: float, _program: Program) -> Proposal | None:
    if not is_a_reduction(finding) or not is_costly(finding, step_ns):
        return None
    return Proposal(
        after="from diagnose.kernels.distributed.comm_hooks import install\n\n"
        'hook = install(ddp, "power_sgd", rank=2, warm_up=1000)   # before the first backward\n'
        "# or measure which hook keeps the loss: try_hooks\n"
        "from diagnose.kernels.distributed.hook_trials import try_hooks",
        least=0.0,
        most=0.8,
        needs="DistributedDataParallel over a slow link; the hook's state_dict beside the model's",
    )


CHANGE = Change(
    id="low-rank-gradients",
    title="Send gradients as products of thin matrices (PowerSGD)",
    numerics=reduced("gradients are approximated; compare the loss of the first thousand steps"),
    patch=Patch(distributed.low_rank_gradients, group="hook"),
    proposal=_proposal,
    applies=to_large_gradients,
    remedy="diagnose.kernels.distributed.comm_hooks",
    modules=("diagnose.kernels.distributed.hook_trials",),
)
