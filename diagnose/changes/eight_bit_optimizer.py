"""Keep AdamW's moments in 8 bits.

What it does
    `eight_bit_adamw(model, lr=lr)` replaces `torch.optim.AdamW`. Its state takes about a quarter of the memory.

What to watch
    It needs bitsandbytes or torchao. Embeddings keep 32 bits. Checkpoints contain the quantized state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_training
from diagnose.changes.common.change import Change, EditLoop, Proposal, reduced
from diagnose.changes.common.memory import OPTIMIZER, held

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


IMPORT = "from diagnose.kernels.eight_bit import eight_bit_adamw"
SPARED = 0.74  # of the state: 1/3.9 of it stays, as measured (evaluation/pages/remedies-memory.md)


def _proposal(finding: Finding, _step_ns: float, _program: Program) -> Proposal:
    return Proposal(
        before="optimizer = torch.optim.AdamW(model.parameters(), lr=lr)",
        after=f"{IMPORT}\n\noptimizer = eight_bit_adamw(model, lr=lr)   # betas, eps and weight_decay as they are",
        needs="the package bitsandbytes or torchao",
        frees_bytes=int(held(finding, OPTIMIZER) * SPARED),
    )


def _applies(program: Program, finding: Finding) -> bool:
    return finding.facts.get("optimizer") in ("AdamW", None) and to_training(program, finding)


CHANGE = Change(
    id="eight-bit-optimizer",
    title="Keep AdamW's moments in 8 bits",
    numerics=reduced("moments are kept in 8 bits; compare the loss curve"),
    edit=EditLoop("with_eight_bit_adamw", "device", "cuda", IMPORT),
    proposal=_proposal,
    applies=_applies,
    remedy="diagnose.kernels.eight_bit",
)
