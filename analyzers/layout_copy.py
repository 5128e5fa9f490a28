"""Tensors are only moved: into another order, into another type, or into the memory of a CUDA graph.

What it looks for
    Conversions between channels-first and channels-last that the libraries put around their kernels, and copies of a
    tensor into one of the same type whose elements lie in another order (`.contiguous()`, `reshape` or `clone` of a
    transposed view): together at least 5 % of the busy time, without conversions 10 %. Or, where that takes longer,
    casts between floating-point types of what the kernel right before them writes, of one pair of kernels three times
    a step and more; or copies within the device that stand back to back with the launch of a CUDA graph, eight and more
    before or behind one.

Why it costs
    Each reads and writes the whole tensor and computes nothing. A strided read also moves several times the bytes that
    it uses.

What to do
    Keep images and convolutions in `channels_last` from end to end; leave out `.contiguous()` before operators that
    take strides, as matrix products and attention do. Let what makes a tensor write the type that it is used in. Let a
    graph read parameters where they are, and keep what backward needs in the graph's own memory.

How sure
    High that the time goes there: names and types show it. A copy that a kernel needs comes back in another place;
    therefore the least saving is small. Of a cast, medium, and low where shapes were not recorded: that it reads what
    the kernel before it wrote follows from their order and their times. Casts that autocast puts inside of operators do
    not count (its cache keeps those of the weights, `torch.autocast(cache_enabled=True)`), nor those in an optimizer's
    step (unfused-optimizer), in runs of pointwise operators (unfused-elementwise) and in a backward. In a CUDA graph no
    operator shows who asked for a cast: low. Around a graph, medium: a new batch has to be copied, parameters have not,
    and which is which was not recorded.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.common.conversions import conversions, types_of_casts
from diagnose.analyzers.common.graph_copies import CASTS, graph_copies
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, top_kernels
from diagnose.model.arrays import Mask, Rows
from diagnose.model.diagnosis import Confidence, Facts, Finding, Where
from diagnose.model.events import Kind
from diagnose.model.intervals import distinct
from diagnose.model.rules import RuleMeta
from diagnose.perf_model.op_inputs import inputs
from diagnose.tables import Tables
from diagnose.tables.names import AnyCase
from diagnose.text.numbers import plural

META = RuleMeta(
    id="layout-copy",
    kind="kernel",
    order=60,
    changes=("channels-last", "no-contiguous", "emit-type", "static-graph-inputs"),
    needs=("shapes",),
)
MIN_BUSY_SHARE = 0.05  # of the busy time
MIN_REORDERED = 0.1  # of it: four healthy models copy 5 to 9 % for operators that need it, planted ones 21 to 50 %
_CONVERTS = AnyCase(
    r"nchwtonhwc|nhwctonchw|foldednhwc|nhwctofolded|batched_transpose|transpose_readwrite|converttensor_kernel"
    r"|tensortransform"
)
_COPIES = re.compile(r"direct_copy_kernel")
_COPY_OPS = frozenset({"aten::copy_", "aten::contiguous", "aten::clone", "aten::reshape"})


def find(t: Tables, free: Mask) -> list[Finding]:
    """Name the time of tasks that only move numbers: of the kind that takes longest."""
    around = graph_copies(t, free)
    free = free & (t.trace.events.kind[t.tasks.row] == Kind.KERNEL)
    free[around] = False
    converts = free & t.tasks_matching(_CONVERTS)
    reorders = free & ~converts & t.tasks_matching(_COPIES)
    copies = np.flatnonzero(reorders)
    reorders[copies] = ~t.tasks_matching(CASTS, copies) & _same_type(t, copies)
    tasks, casts = np.flatnonzero(converts | reorders), conversions(t, free & ~converts & ~reorders)
    length = t.tasks.end - t.tasks.start
    if length[around].sum() > max(length[tasks].sum(), length[casts].sum()):
        return _around_graphs(t, around)
    if length[casts].sum() > length[tasks].sum():
        return _casts(t, casts)
    is_conversion = bool(length[converts].sum() > length[reorders].sum())
    title = "Images are converted between memory layouts" if is_conversion else "Tensors are copied into another order"
    least = MIN_BUSY_SHARE if is_conversion else MIN_REORDERED
    rule = KernelRule(META.id, title, least, evidence=top_kernels(t, tasks), facts={"is_conversion": is_conversion})
    return [replace(found, where=_script_first(found.where)) for found in kernel_finding(t, rule, tasks)]


def _script_first(places: tuple[Where, ...]) -> tuple[Where, ...]:
    """Return the places with copies that the script calls itself first: other operators copy what these give them."""
    return tuple(sorted(places, key=lambda place: place.op not in _COPY_OPS))


def _casts(t: Tables, tasks: Rows) -> list[Finding]:
    facts: Facts = {"is_conversion": False, "cast_to": types_of_casts(t, tasks)}
    in_graph = bool(2 * t.graph_nodes[tasks].sum() > len(tasks))
    confidence: Confidence = "medium" if t.operator_inputs.is_known.any() and not in_graph else "low"
    title = "Tensors are converted to another type as soon as they are made"
    if in_graph:
        title = "Tensors are converted to another type as soon as they are made, in a CUDA graph"
    rule = KernelRule(
        META.id, title, MIN_BUSY_SHARE, evidence=top_kernels(t, tasks), facts=facts, confidence=confidence
    )
    return kernel_finding(t, rule, tasks)


def _around_graphs(t: Tables, tasks: Rows) -> list[Finding]:
    num = plural(len(distinct(t.tasks.launch[t.graph_nodes])) / t.steps.num, "launch")
    moved_mb = t.trace.events.size[t.tasks.row[tasks]].clip(min=0).sum() / t.steps.num / 1e6
    evidence = [
        f"They are queued right before or behind {num} of CUDA graphs a step, and move {moved_mb:,.0f} MB: what the "
        "graphs read is copied into their memory, what they write is copied out.",
        *top_kernels(t, tasks),
    ]
    facts: Facts = {"is_conversion": False, "around_graphs": True}
    title = "CUDA graphs copy their inputs and outputs at each launch"
    rule = KernelRule(META.id, title, MIN_BUSY_SHARE, evidence=evidence, facts=facts, confidence="medium")
    return kernel_finding(t, rule, tasks)


def _same_type(t: Tables, tasks: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Return which copies keep the type, as far as the types of what is copied were recorded."""
    given = t.operator_inputs
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
