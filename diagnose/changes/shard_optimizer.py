"""Split the optimizer's state over the ranks.

What it does
    `zero_optimizer(torch.optim.AdamW, model.parameters(), lr=lr)` replaces the optimizer, next to
    DistributedDataParallel (ZeRO, first stage). Each rank keeps and updates its share of the state.

What to watch
    After each step the updated parameters are broadcast: as many bytes as the model has, not overlapped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_data_parallel_training
from diagnose.changes.common.change import Change, EditLoop, Proposal, identical
from diagnose.changes.common.memory import OPTIMIZER, freed_by, num_ranks

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


IMPORT = "from diagnose.kernels.distributed.zero import zero_optimizer"


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    name = finding.facts.get("optimizer") or "AdamW"
    return Proposal(
        before=f"optimizer = torch.optim.{name}(model.parameters(), lr=lr)",
        after=f"{IMPORT}\n\noptimizer = zero_optimizer(torch.optim.{name}, model.parameters(), lr=lr)",
        needs="several ranks, and more parameters than ranks",
        frees_bytes=freed_by(finding, (OPTIMIZER,)),
    )


def _applies(program: Program, finding: Finding) -> bool:
    return num_ranks(finding) > 1 and to_data_parallel_training(program, finding)


CHANGE = Change(
    id="shard-optimizer",
    title="Split the optimizer's state over the ranks",
    numerics=identical(),
    edit=EditLoop("with_zero_optimizer", "device", "cuda", IMPORT),
    proposal=_proposal,
    applies=_applies,
    remedy="diagnose.kernels.distributed.zero",
)
