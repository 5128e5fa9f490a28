"""Casts between floating-point types of what the kernel before has just written."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.common.locate import enclosing_operators
from diagnose.model.arrays import Mask
from diagnose.model.events import Kind
from diagnose.model.intervals import covered, distinct
from diagnose.tables import Tables

__all__ = ["conversions", "types_of_casts"]

MIN_REPEATS = 3  # of one pair in a step: what a loop over layers or blocks does; one cast is a decision
# A cast reads and writes each element; its producer wrote it: of 16 and 32 bits, at least a third of the bytes.
MIN_PRODUCER_SHARE = 1 / 3
_FLOATS = r"float|double|c10::Half|c10::BFloat16|c10::Float8_\w+"
_CAST = re.compile(
    rf"direct_copy_kernel.*lambda\((?P<to>{_FLOATS})\).*(LoadWithCast|StoreWithCast)"
    r"|(?P<short>bfloat16|float16|half|float8)_copy_kernel_cuda"
)
_CAST_OPS = frozenset(
    {"aten::to", "aten::_to_copy", "aten::copy_", "aten::type_as", "aten::float", "aten::half", "aten::bfloat16"}
)
# A cast inside an operator is autocast's, the backward of a cast goes with it, a policy casts sharded parameters.
_OF_OTHERS = r"^aten::|ToCopyBackward|FSDP|FullyShardedDataParallel"


def conversions(t: Tables, free: Mask) -> npt.NDArray[np.intp]:
    """Return the tasks that convert what one and the same kernel before them writes, several times a step.

    Casts within runs of pointwise kernels, in an optimizer's step and of data from elsewhere do not count: others
    answer for the first two, and of the third nobody on the device can write another type.
    """
    casts = free & t.tasks_matching(_CAST) & (t.tasks.launch >= 0)
    for chain in t.chains if casts.any() else []:
        casts[chain.tasks] = False
    found = np.flatnonzero(casts)
    producer = _kernels_before(t)[found]
    length = t.tasks.end - t.tasks.start
    keep = (producer >= 0) & (length[producer] >= MIN_PRODUCER_SHARE * length[found])
    called = t.trace.events.start[t.tasks.launch[found]]
    keep &= covered(t.updates, called, called + 1) == 0
    found, producer = found[keep], producer[keep]
    own = _asked_for(t, found) | t.graph_nodes[found]  # of a graph nothing shows who asked
    found, producer = found[own], producer[own]
    name = t.trace.events.name[t.tasks.row]
    pairs = list(zip(name[producer].tolist(), name[found].tolist(), strict=True))
    count = Counter(pairs)
    repeats: Mask = np.array([count[pair] >= MIN_REPEATS * t.steps.num for pair in pairs], bool)
    again: npt.NDArray[np.intp] = found[repeats]
    return again


def types_of_casts(t: Tables, tasks: npt.NDArray[np.intp]) -> str:
    """Return the type that most of the casts' time goes into, "" for unknown."""
    cost: Counter[str] = Counter()
    for task, ns in zip(tasks.tolist(), (t.tasks.end - t.tasks.start)[tasks].tolist(), strict=True):
        match = _CAST.search(t.name(int(t.tasks.row[task])))
        cost[(match["to"] or match["short"] or "") if match else ""] += ns
    return cost.most_common(1)[0][0].removeprefix("c10::").lower() if cost else ""


def _kernels_before(t: Tables) -> npt.NDArray[np.intp]:
    """Return for each task the kernel right before it on its stream, -1 for none, or a copy, or a collective."""
    before = np.full(len(t.tasks.row), -1, np.intp)
    computes = (t.trace.events.kind[t.tasks.row] == Kind.KERNEL) & ~t.tasks.is_collective
    for tasks in t.streams.values():
        before[tasks[1:]] = np.where(computes[tasks[:-1]], tasks[:-1], -1)
    return before


def _asked_for(t: Tables, tasks: npt.NDArray[np.intp]) -> Mask:
    """Return which casts the program asks for itself, as the operators around their launches show."""
    events, launch = t.trace.events, t.tasks.launch[tasks]
    found = np.zeros(len(tasks), bool)
    for thread in distinct(events.thread[launch]).tolist() if len(tasks) else []:
        mine = np.flatnonzero(events.thread[launch] == thread)
        for i, text in zip(mine.tolist(), enclosing_operators(t, thread, events.start[launch[mine]]), strict=True):
            around = text.split(" > ")
            found[i] = not any(re.search(_OF_OTHERS, name) for name in around if name not in _CAST_OPS)
            found[i] &= any(name in _CAST_OPS for name in around)
    return found
