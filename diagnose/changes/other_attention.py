"""Let attention run in another backend.

What it does
    Tries the other backends of `scaled_dot_product_attention` under `with sdpa_kernel([...]):`. Keep the fastest. On
    AMD, `torch.backends.cuda.preferred_rocm_fa_library("ck")` selects Composable Kernel.

What to watch
    A backend raises an error if it does not support the shapes or the device.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnose.changes.common.change import Change, Patch, Proposal, rounding
from diagnose.changes.patches import precision

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


_16_BITS = r"(?i)half|bfloat16"


def _applies(program: Program, _finding: Finding) -> bool:
    if _has_one_library(program):
        return "efficient" not in program.attention_backends  # on AMD only flash attention has two libraries
    return program.has_torch_attention is not False and bool(_others(program))


def _has_one_library(program: Program) -> bool:
    """Return whether the fused backends run the same kernels: AMD's do, where types of 16 bits let flash run."""
    is_half = not program.dtypes or any(re.search(_16_BITS, dtype) for dtype in program.dtypes)
    has_fused = program.has_torch_attention is not False and "math" not in program.attention_backends
    return program.vendor == "AMD" and is_half and has_fused


def _others(program: Program) -> list[str]:
    """Return the backends that did not run: those of 16 bits only where there are such types; cuDNN is NVIDIA's."""
    known = ["flash", "efficient"] if program.vendor == "AMD" else ["cudnn", "flash", "efficient"]
    if program.dtypes and not any(re.search(_16_BITS, dtype) for dtype in program.dtypes):
        known = ["efficient"]
    return [name for name in known if name not in program.attention_backends]


def _proposal(finding: Finding, _step_ns: float, program: Program) -> Proposal | None:
    if not finding.facts["attention"]:
        return None
    if _has_one_library(program):
        return Proposal(
            title="Try flash attention in Composable Kernel and keep the faster library",
            before="y = F.scaled_dot_product_attention(q, k, v)",
            after='torch.backends.cuda.preferred_rocm_fa_library("ck")   # or: TORCH_ROCM_FA_PREFER_CK=1',
            needs="a torch for ROCm that is built with Composable Kernel; is_causal=True if the mask is causal",
            arguments={"library": "ck"},
        )
    others = ", ".join(f"SDPBackend.{name.upper()}_ATTENTION" for name in _others(program))
    return Proposal(
        before="y = F.scaled_dot_product_attention(q, k, v)",
        after="from torch.nn.attention import SDPBackend, sdpa_kernel\n\n"
        f"with sdpa_kernel([{others}]):   # in place of the one that ran\n"
        "    y = F.scaled_dot_product_attention(q, k, v)",
        needs="a device and shapes that the backend supports; is_causal=True if the mask is causal",
        arguments={"backends": _others(program)},
    )


CHANGE = Change(
    id="other-attention",
    title="Try other attention backends and keep the fastest",
    numerics=rounding("backends round differently; compare the loss of the first steps"),
    patch=Patch(precision.other_attention, needs_gpu=True),
    proposal=_proposal,
    applies=_applies,
)
