"""Matrix products and convolutions run in float32 without tensor cores.

What it looks for
    float32 kernels of matrix products, convolutions and attention on a GPU with tensor cores. Threshold: 10% of GPU
    busy time.

Why it costs
    Tensor cores are 4–16 times faster in TF32, bfloat16 or float16.

What to do
    Add `torch.set_float32_matmul_precision("high")` (compute capability 8.0 or later), or run the forward under
    autocast.

How sure
    High. The cost assumes twice the rate.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import distinct
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.names import AnyCase

META = RuleMeta(
    id="full-precision-matmul",
    kind="kernel",
    order=30,
    changes=("allow-tf32", "autocast"),
)
_FULL = re.compile(
    r"sgemm|scudnn|cgemm|fmha_cutlass[FB]_f32|(dgrad|wgrad)\w*engine<float|convolve\w*<float|f32f32_f32f32"
    r"|gemm\w*<float, "
    r"|Cijk_\w+_SB_|winograd\w*(fp32|f32|<float)|cf\d*_f32|conv\w*_fp32"
)
_NOT = AnyCase(r"tf32|s1688|s16816|s884|h884|h1688|tensorop|xf32|bf16|bfloat|half|fp16|f16|gemv|int8")
_ARCH = re.compile(
    r"(?P<volta>volta|sm7\d)|(?P<later>turing|ampere|ada|hopper|sm8\d|sm9\d|sm1\d\d|cutlass_[89]\d|cutlass_1\d\d)"
)


def find(t: Tables, _free: Mask) -> list[Finding]:
    """Name the time of float32 products that tensor cores could do."""
    tasks = np.flatnonzero(t.tasks_matching(_FULL) & ~t.tasks_matching(_NOT))
    # The major compute capability is that of the file, or the kernels' names show it; 0 where it is unknown.
    names = (t.trace.names[n] for n in distinct(t.trace.events.name[t.tasks.row]).tolist())
    named = {match.lastgroup for match in map(_ARCH.search, names) if match}
    known = [each.compute_capability[0] for each in t.trace.devices if each.id == t.device_id]
    generation = max(known, default=0) or (8 if "later" in named else 7 if "volta" in named else 0)
    if generation < 7:  # Volta, the first with tensor cores
        return []
    rule = KernelRule(
        META.id,
        "Matrix products run in float32, slower than on tensor cores",
        min_share=0.1,
        kept_ns=(t.tasks.end - t.tasks.start)[tasks].sum() / 2,
        evidence=top_kernels(t, tasks),
        facts={"has_tf32": generation >= 8},
    )
    return kernel_finding(t, rule, tasks)
