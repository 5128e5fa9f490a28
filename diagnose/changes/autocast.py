"""Run the forward under autocast.

What it does
    Wraps the forward: `with torch.autocast("cuda", dtype=torch.bfloat16): y = model(x)`. Products and convolutions run
    in 16 bits; operators that need float32 keep it.

What to watch
    Keep `backward()` outside. Devices without bfloat16 take float16 and need a `GradScaler`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, EditLoop, Patch, Proposal, reduced
from diagnose.changes.common.precision import FP16_BY_HAND, products_in
from diagnose.changes.patches import precision

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.replay.effects import Effect
    from diagnose.tables import Tables
    from diagnose.tables.program import Program


def _proposal(finding: Finding, _step_ns: float, program: Program) -> Proposal:
    has_bfloat16 = finding.facts["has_tf32"]  # such devices have bfloat16 too
    if program.trains is False:
        dtype = "bfloat16" if has_bfloat16 else "float16"
        return Proposal(
            title=f"Run the forward under autocast in {dtype}",
            before="y = model(x)",
            after=f'with torch.inference_mode(), torch.autocast("cuda", dtype=torch.{dtype}):\n    y = model(x)',
            least=0.5,
            numerics=reduced("16-bit products round; compare the outputs with the float32 ones"),
            arguments={} if has_bfloat16 else {"dtype": dtype},
        )
    if program.trains is None:
        dtype = "bfloat16" if has_bfloat16 else "float16"
        return Proposal(
            title=f"Run the forward under autocast in {dtype}",
            before="y = model(x)",
            after=f'with torch.autocast("cuda", dtype=torch.{dtype}):\n    y = model(x)   # backward() stays outside'
            + ("" if has_bfloat16 else "; where it trains, with a GradScaler"),
            least=0.5,
            numerics=reduced("16-bit products round; compare the results with the float32 ones"),
            arguments={} if has_bfloat16 else {"dtype": dtype},
        )
    before = "loss = criterion(model(x), y)\nloss.backward()"
    if has_bfloat16:
        after = 'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = criterion(model(x), y)\nloss.backward()'
        return Proposal(before=before, after=after, least=0.5)
    after = (
        'scaler = torch.amp.GradScaler("cuda")\n'
        'with torch.autocast("cuda", dtype=torch.float16):\n    loss = criterion(model(x), y)\n'
        "scaler.scale(loss).backward()\n"
        "scaler.unscale_(optimizer)      # before gradients are clipped or read; leave it out where they are not\n"
        "scaler.step(optimizer)\nscaler.update()"
    )
    title = "Run the forward under autocast in float16"
    return Proposal(title=title, before=before, after=after, least=0.5, arguments={"dtype": "float16"})


def _effect(t: Tables, finding: Finding) -> Effect | None:
    return products_in(t, finding, "f16")


CHANGE = Change(
    id="autocast",
    title="Run the forward under autocast in bfloat16",
    numerics=reduced("16-bit products round; compare the loss curve with the float32 one"),
    patch=Patch(precision.autocast),
    edit=EditLoop("with_autocast", "device", "cuda", unless={"dtype": ("float16", FP16_BY_HAND)}),
    proposal=_proposal,
    effect=_effect,
    to_try=lambda work: work.is_of_products and work.has_bfloat16,
    remedy="diagnose.kernels.precision",
)
