"""Leave out the search for parameters that a forward does not use.

What it does
    Passes `find_unused_parameters=False` to DistributedDataParallel. It then does not walk the graph after each
    forward.

What to watch
    If a step leaves a parameter unused, DDP raises an error. Such a model needs the search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_data_parallel_training
from diagnose.changes.common.change import Change, Patch, Proposal, identical
from diagnose.changes.common.gradients import NO_SEARCH, ddp_arguments
from diagnose.changes.patches import distributed

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal | None:
    if not ddp_arguments(finding).get("find_unused_parameters"):
        return None
    return Proposal(
        before="model = DistributedDataParallel(model, find_unused_parameters=True)",
        after="model = DistributedDataParallel(model)   # diagnose.kernels.distributed.ddp_arguments.advise checks it",
        least=0.0,
        most=0.2,
        needs="a forward that uses every parameter in every step",
    )


CHANGE = Change(
    id="no-unused-search",
    title="Leave out the search for unused parameters",
    numerics=identical("if every step uses every parameter"),
    patch=Patch(distributed.no_unused_search),
    edit=NO_SEARCH,
    proposal=_proposal,
    applies=to_data_parallel_training,
    remedy="diagnose.kernels.distributed.ddp_arguments",
)
