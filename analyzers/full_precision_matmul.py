"""Matrix multiplications and convolutions run in full precision, without tensor cores.

What it looks for
    Kernels of matrix products, convolutions and attention in float32 on a device with tensor cores, that take at
    least 10 % of the busy time.

Why it costs
    Tensor cores do the same products 4 to 16 times faster in TF32, bfloat16 or float16.

What to do
    Allow TF32 (one line, from compute capability 8.0), or run the forward under autocast.

How sure
    High: the type is in the kernel's name. What is lost assumes twice the rate, far below the peak ratio; what is
    saved is put at between half of that and all of it.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding, Where
from diagnose.model.events import Kind
from diagnose.model.intervals import among, distinct, grouped, intersect, total, union
from diagnose.model.rules import RuleMeta
from diagnose.tables import Tables
from diagnose.tables.names import AnyCase, matching
from diagnose.text.numbers import duration, percent, plural

META = RuleMeta(
    id="full-precision-matmul",
    kind="kernel",
    order=30,
    changes=("allow-tf32", "autocast"),
)
MIN_BUSY_SHARE = 0.1
SPEED_UP = 2.0
_FULL = re.compile(
    r"sgemm|scudnn|cgemm|fmha_cutlass[FB]_f32|(dgrad|wgrad)\w*engine<float|convolve\w*<float|f32f32_f32f32"
    r"|gemm\w*<float, "
    r"|Cijk_\w+_SB_|winograd\w*(fp32|f32|<float)|cf\d*_f32|conv\w*_fp32"
)
_NOT = AnyCase(r"tf32|s1688|s16816|s884|h884|h1688|tensorop|xf32|bf16|bfloat|half|fp16|f16|gemv|int8")
_ARCH = re.compile(
    r"(?P<volta>volta|sm7\d)|(?P<later>turing|ampere|ada|hopper|sm8\d|sm9\d|sm1\d\d|cutlass_[89]\d|cutlass_1\d\d)"
)
VOLTA, AMPERE = 7, 8


def _rows(t: Tables) -> npt.NDArray[np.intp]:
    full = np.zeros(len(t.trace.events.kind), bool)
    full[matching(t.trace, (Kind.KERNEL,), _FULL)] = True
    rows = t.tasks.row[full[t.tasks.row]]
    names = t.trace.events.name[rows]
    others = [name for name in distinct(names).tolist() if _NOT.search(t.trace.names[name])]
    return np.sort(rows[~among(names, np.array(others, names.dtype))], kind="stable")


def _generation(t: Tables) -> int:
    """Return the major compute capability, from the file or from the kernels' names; 0 where unknown."""
    for device in t.trace.devices:
        if device.id == t.device_id and device.compute_capability[0]:
            return device.compute_capability[0]
    found = {match.lastgroup for match in map(_ARCH.search, _kernel_names(t)) if match}
    return AMPERE if "later" in found else VOLTA if "volta" in found else 0


def _kernel_names(t: Tables) -> list[str]:
    return [t.trace.names[n] for n in distinct(t.trace.events.name[t.tasks.row]).tolist()]


def find(t: Tables, _free: Mask) -> list[Finding]:
    """Name the time of float32 products that tensor cores could do."""
    generation = _generation(t)
    rows = _rows(t)
    if generation < VOLTA or not len(rows):
        return []
    events = t.trace.events
    time = total(intersect(union((events.start[rows], events.end[rows])), t.occupancy.busy))
    if time < MIN_BUSY_SHARE * total(t.occupancy.busy):
        return []
    names, _, inverse = grouped(events.name[rows])
    sums = np.bincount(inverse, (events.end - events.start)[rows].astype(np.float64))
    top = [t.trace.names[int(names[i])] for i in np.argsort(-sums)[:3]]
    return [
        Finding(
            rule=META.id,
            title="Matrix products run in float32, slower than on tensor cores",
            lost_ns=time / t.steps.num * (1 - 1 / SPEED_UP),
            count=len(rows),
            total_ns=time,
            median_ns=int(np.median((events.end - events.start)[rows])),
            tasks=np.flatnonzero(among(t.tasks.row, rows)),
            evidence=(
                f"{plural(len(rows) / t.steps.num, 'float32 product')} a step: {duration(time / t.steps.num)}, "
                f"{percent(time / max(total(t.occupancy.busy), 1), 0)} of the busy time.",
                *(f"Kernel: {name}" for name in top),
            ),
            where=_where(t, rows),
            confidence="high",
            facts={"has_tf32": generation >= AMPERE},
        )
    ]


def _where(t: Tables, rows: npt.NDArray[np.intp]) -> tuple[Where, ...]:
    from diagnose.analyzers.common.locate import locate_one

    events = t.trace.events
    longest = rows[np.argsort(-(events.end - events.start)[rows], kind="stable")][:20]
    launches = events.cause[longest]
    found = [locate_one(t, int(events.thread[r]), int(events.start[r])) for r in launches[launches >= 0].tolist()]
    return tuple(dict.fromkeys(Where(w.file, w.line, w.function, w.op, code=w.code) for w in found if w.op))[:3]
