"""Allow TF32 for float32 products.

What it does
    Adds `torch.set_float32_matmul_precision("high")`. Float32 products then run on tensor cores.

What to watch
    It needs compute capability 8.0 or later, or an MI300 with `HIPBLASLT_ALLOW_TF32=1`. Other devices ignore it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import AddStatement, Change, Patch, Proposal, reduced
from diagnose.changes.common.precision import products_in
from diagnose.changes.patches import precision

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

STATEMENT = 'torch.set_float32_matmul_precision("high")'


def _proposal(finding: Finding, _step_ns: float, program: Program) -> Proposal | None:
    if not finding.facts["has_tf32"]:
        return None
    if program.vendor == "AMD":
        return Proposal(after=STATEMENT, least=0.0, needs="an MI300 and HIPBLASLT_ALLOW_TF32=1 in the environment")
    return Proposal(after=STATEMENT, least=0.4, needs="compute capability 8.0 or later")


def _effect(t: Tables, finding: Finding) -> Effect | None:
    return products_in(t, finding, "tf32")


CHANGE = Change(
    id="allow-tf32",
    title="Allow TF32 for float32 products",
    numerics=reduced("products keep 10 bits of mantissa; compare the loss curve"),
    patch=Patch(precision.allow_tf32, needs_gpu=True),
    edit=AddStatement(STATEMENT, ("set_float32_matmul_precision", "allow_tf32", "fp32_precision")),
    proposal=_proposal,
    effect=_effect,
    remedy="diagnose.kernels.matmul_precision",
)
