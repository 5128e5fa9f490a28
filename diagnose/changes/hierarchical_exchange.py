"""Reduce gradients inside each host first.

What it does
    `install(ddp, "hierarchical", mesh=two_levels("cuda", by="links"))` sums inside each host, then between hosts. Slow
    links carry only each rank's share. On one host, NVLink groups count as hosts.

What to watch
    Each host needs the same number of consecutive ranks. NCCL may already do this by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Patch, Proposal, rounding
from diagnose.changes.common.gradients import is_a_reduction, to_large_gradients
from diagnose.changes.common.memory import num_ranks
from diagnose.changes.patches import distributed

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _applies(program: Program, finding: Finding) -> bool:
    devices = finding.facts.get("num_devices")
    has_hosts = isinstance(devices, int) and 1 < devices < num_ranks(finding)
    return has_hosts and to_large_gradients(program, finding)


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    if not is_a_reduction(finding):
        return None
    return Proposal(
        after="from diagnose.kernels.distributed.comm_hooks import install\n"
        "from diagnose.kernels.distributed.mesh import two_levels\n\n"
        'install(ddp, "hierarchical", mesh=two_levels("cuda", by="links"))   # before the first backward',
        least=0.0,
        most=0.8,
        needs="several hosts with equally many ranks, and a slower link between them",
    )


CHANGE = Change(
    id="hierarchical-exchange",
    title="Reduce gradients inside each host before they cross between hosts",
    numerics=rounding("gradients are summed in another order; compare the loss of the first steps"),
    patch=Patch(distributed.hierarchical_exchange, group="hook"),
    proposal=_proposal,
    applies=_applies,
    remedy="diagnose.kernels.distributed.comm_hooks",
    modules=("diagnose.kernels.distributed.mesh",),
)
