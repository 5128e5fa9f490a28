"""Kernels that only move numbers into another order.

What it looks for
    Conversions between channels-first and channels-last that the libraries put around their kernels, and copies of a
    tensor into one of the same type whose elements lie in another order (`.contiguous()`, `reshape` or `clone` of a
    transposed view): together at least 5 % of the busy time.

Why it costs
    Each reads and writes the whole tensor and computes nothing. A strided read also moves several times the bytes that
    it uses.

What to do
    Keep images and convolutions in `channels_last` from end to end; leave out `.contiguous()` before operators that
    take strides, as matrix products and attention do.

How sure
    High that the time goes there: names and types show it. A copy that a kernel needs comes back in another place;
    therefore the least saving is small. Copies that also change the type are not counted.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import distinct
from diagnose.model.rules import RuleMeta
from diagnose.perf_model.op_inputs import inputs
from diagnose.tables import Tables
from diagnose.tables.op_launches import operator_inputs

META = RuleMeta(
    id="layout-copy",
    kind="kernel",
    order=60,
    changes=("channels-last", "no-contiguous"),
)
MIN_SHARE = 0.05  # of the busy time
_CONVERTS = re.compile(
    r"nchwToNhwc|nhwcToNchw|foldedNhwc|NhwcToFolded|batched_transpose|transpose_readWrite|convertTensor_kernel"
    r"|tensorTransform",
    re.IGNORECASE,
)
_COPIES = re.compile(r"direct_copy_kernel")
_CASTS = re.compile(r"LoadWithCast|StoreWithCast")
_COPY_OPS = frozenset({"aten::copy_", "aten::contiguous", "aten::clone", "aten::reshape"})


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of kernels that only reorder."""
    free = free & (t.trace.events.kind[t.tasks.row] == Kind.KERNEL)
    converts = free & t.tasks_matching(_CONVERTS)
    reorders = free & ~converts & t.tasks_matching(_COPIES) & ~t.tasks_matching(_CASTS)
    reorders[np.flatnonzero(reorders)] = _same_type(t, np.flatnonzero(reorders))
    tasks = np.flatnonzero(converts | reorders)
    length = t.tasks.end - t.tasks.start
    is_conversion = bool(length[converts].sum() > length[reorders].sum())
    title = "Images are converted between memory layouts" if is_conversion else "Tensors are copied into another order"
    rule = KernelRule(META.id, title, MIN_SHARE, evidence=top_kernels(t, tasks), facts={"is_conversion": is_conversion})
    return kernel_finding(t, rule, tasks)


def _same_type(t: Tables, tasks: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Return which copies keep the type, as far as the types of what is copied were recorded."""
    given = operator_inputs(t)
    by_name = np.zeros(len(given.texts) + 1, bool)
    for row in distinct(given.name[tasks]).tolist() if len(tasks) else []:
        by_name[row] = given.text(row) in _COPY_OPS
    is_copy = by_name[given.name[tasks]]
    types = np.where(is_copy, given.types[tasks], -1)
    same = np.ones(len(given.texts) + 1, bool)  # the last one is for tasks of which nothing is known
    for row in distinct(types[types >= 0]).tolist():
        read = inputs("[[1], [1]]", given.texts[row])
        same[row] = read is None or len({tensor.type for tensor in read.tensors}) <= 1
    found: npt.NDArray[np.bool_] = same[types]
    return found
