"""Whole rows are sorted.

What it looks for
    Kernels that sort: at least 8 % of the busy time, those of an embedding's backward pass left out. Without a device:
    operators that sort, at least 8 % of the step.

Why it costs
    A sort of long rows reads and writes all of them several times. Often a few of the largest or smallest are used,
    which one pass finds, or what is sorted is the same in each step.

What to do
    `torch.topk` where a few are used; a sort, a `unique` or an index that does not change is made once, before the
    loop.

How sure
    High for the time. What is done with the sorted rows is not in the trace.
"""

from __future__ import annotations

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleGaps, IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.kernel_findings import KernelRule, kernel_finding, top_kernels
from diagnose.model.arrays import Mask
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, contains, total, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.dense_embeddings import in_embedding_backward
from diagnose.tables.names import BACKWARD, AnyCase
from diagnose.text.numbers import duration
from diagnose.text.patterns import lazy_pattern

META = RuleMeta(
    id="full-sort",
    kind="kernel",
    order=76,
    host_order=96,
    legend=Legend("whole rows were sorted", "#7a6a9c"),
    changes=("select-top-k",),
)
MIN_BUSY_SHARE = 0.08  # of the busy time: sorting a few thousand keys beside a model takes less
KEPT = 0.3  # of the time, by the selection of a few from each row
_SORTS = lazy_pattern(r"^aten::(arg|m)?sort$")
_KERNELS = AnyCase(r"radix_?sort|merge_?sort|bitonic_?sort|segmented_?sort")


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim of operators that sort what a selection saves."""
    return worth_claiming(t, left, _sorts(t), MIN_BUSY_SHARE * (1 - KEPT))


def find(t: Tables, free: Mask | None = None) -> list[Finding]:
    """Name the time of kernels or operators that sort."""
    if free is None:
        title = "Whole rows are sorted"
        return idle_finding(t, IdleRule(META.id, title, probe="middle", evidence=_texts, confidence="medium"))
    tasks = np.flatnonzero(free & t.tasks_matching(_KERNELS))
    tasks = tasks[~in_embedding_backward(t, tasks)]
    kept_ns = KEPT * float((t.tasks.end - t.tasks.start)[tasks].sum())
    evidence = top_kernels(t, tasks, most=2)
    rule = KernelRule(META.id, "The device sorts whole rows", MIN_BUSY_SHARE, kept_ns, evidence, confidence="medium")
    return kernel_finding(t, rule, tasks)


def _sorts(t: Tables) -> Intervals:
    """Return the ends of the forward's operators that sort, as much of each as a selection saves."""
    rows, events = t.in_window(t.calls(_SORTS, Kind.OP)), t.trace.events
    rows = rows[~contains(t.covering(t.calls(BACKWARD, Kind.OP, Kind.ANNOTATION)), events.start[rows])]
    whole = t.covering(rows)
    return union((whole.start + (KEPT * (whole.end - whole.start)).astype(np.int64), whole.end))


def _texts(t: Tables, _gaps: IdleGaps) -> list[str]:
    return [f"Operators that sort take {duration(total(_sorts(t)) / (1 - KEPT) / t.steps.num)} of each step."]
