"""Kernels that one fused kernel would do: written-out attention, and runs of pointwise operators over one size.

Where no shapes were recorded, pointwise kernels count as of one size that take about the same time, and long enough to
show it. Nodes of a CUDA graph have no operators: of one size are torch's own pointwise kernels of one grid there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Mask, Rows
from diagnose.model.intervals import among, contains, grouped
from diagnose.model.shapes import num_elements
from diagnose.perf_model.op_cost import is_pointwise, output_size
from diagnose.perf_model.op_inputs import inputs
from diagnose.tables import Tables
from diagnose.tables.kernel_classes import tasks_of
from diagnose.tables.op_launches import Chain, WrittenOut

__all__ = ["Chain", "WrittenOut", "chains", "pointwise_tasks", "written_out_attention"]

_SOFTMAX = ("aten::_softmax", "aten::_safe_softmax")
_PRODUCT = ("aten::bmm", "aten::baddbmm")
# Operators that stand between a product and the softmax at most: scaling, bias, mask, casts, dropout, copies.
_REACH = 6
# Pointwise kernels over as many elements read one to three tensors and write one.
MAX_TIME_RATIO = 2.0
MIN_SIZED_NS = 5_000  # below it the fixed cost of a kernel sets its time, which then shows no size
_OF_TORCH = re.compile(r"at::native::")


def written_out_attention(t: Tables) -> list[WrittenOut]:
    """Return each softmax that stands between two batched products on a stream."""
    ops, given = t.operators, t.operator_inputs
    used = np.flatnonzero(np.bincount(given.name[given.name >= 0], minlength=1)).tolist()
    softmaxes, products_of = ([n for n in used if given.texts[n] in names] for names in (_SOFTMAX, _PRODUCT))
    found: list[WrittenOut] = []
    for every in t.streams.values() if softmaxes else ():
        tasks = every[ops[every] >= 0]
        rows, first, _ = grouped(ops[tasks])
        order = np.argsort(first, kind="stable")  # of the operators, by their first tasks
        rows, leading = rows[order], tasks[first[order]]
        products = np.flatnonzero(among(given.name[leading], products_of))
        for i in np.flatnonzero(among(given.name[leading], softmaxes)).tolist():
            at = int(np.searchsorted(products, i))
            before, after = products[at - 1 : at], products[at : at + 1]
            if not len(before) or not len(after) or i - before[0] > _REACH or after[0] - i > _REACH:
                continue
            task = leading[i]
            read = inputs(given.text(int(given.shapes[task])), given.text(int(given.types[task])))
            scores = num_elements(read.at[0].shape) if read is not None and read.at and read.at[0] else 0
            ends, within = rows[[before[0], after[0]]], rows[before[0] + 1 : after[0]]
            mine = ops[tasks]
            found.append(WrittenOut(tasks[among(mine, ends)], tasks[among(mine, within)], scores, int(rows[i])))
    return found


def chains(t: Tables) -> list[Chain]:
    """Return the runs in time order, then those among the nodes of graphs: torch's kernels of one grid.

    Neither the optimizer's own kernels nor those within written-out attention count: other rules name them. A run
    of one and the same operator does not count either: it may as well be a loop over tensors that do not depend on
    each other. Kernels in graphs that a compiler or a library wrote are fused as far as their authors could.
    """
    given, kernel, grid = t.operator_inputs, t.trace.events.name[t.tasks.row], t.trace.events.grid[t.tasks.row]
    found = [
        Chain(run, tuple(given.texts[n] for n in given.name[run].tolist()), took, longest)
        for run, took, longest in _runs(t, _sizes(t), given.name)
    ]
    nodes = t.graph_nodes & (grid > 0) & t.tasks_matching(_OF_TORCH) & ~t.graphed_updates
    if not nodes.any():
        return found
    group = _alike(t, nodes & tasks_of(t, "elementwise", "copy"), t.tasks.launch, grid)
    return found + [
        Chain(run, tuple(functor(t.name(row)) for row in t.tasks.row[run].tolist()), took, longest, in_graph=True)
        for run, took, longest in _runs(t, group, kernel)
    ]


def pointwise_tasks(t: Tables) -> Mask:
    """Return which tasks are of pointwise operators whose sizes are known, and of no other rule."""
    return _sizes(t) > 0


def _runs(t: Tables, group: Ints, name: npt.NDArray[np.integer]) -> Iterator[tuple[Rows, int, int]]:
    """Yield the neighbours on a stream in one group, 0 for none, with several names; their time and the longest, ns."""
    length = t.tasks.end - t.tasks.start
    for tasks in t.streams.values():
        begin = np.flatnonzero(np.diff(group[tasks], prepend=-1) != 0)
        end = np.append(begin[1:], len(tasks))
        changes = np.append(0, np.cumsum(np.diff(name[tasks]) != 0))  # of the name, up to each task
        worth = (group[tasks[begin]] > 0) & (changes[end - 1] > changes[begin])
        took, longest = (ufunc.reduceat(length[tasks], begin)[worth].tolist() for ufunc in (np.add, np.maximum))
        runs = (tasks[a:b] for a, b in zip(begin[worth].tolist(), end[worth].tolist(), strict=True))
        yield from zip(runs, took, longest, strict=True)


def _sizes(t: Tables) -> Ints:
    """Return the number of elements that each task of a pointwise operator writes, 0 for every other task."""
    inputs_of = t.operator_inputs
    size = np.zeros(len(inputs_of.name), np.int64)
    pointwise = np.zeros(len(inputs_of.texts) + 1, bool)  # by name; the last one is for tasks of no operator
    asked_names = np.flatnonzero(np.bincount(inputs_of.name[inputs_of.name >= 0], minlength=1))
    pointwise[asked_names] = [is_pointwise(inputs_of.texts[name]) for name in asked_names.tolist()]
    if not inputs_of.is_known.any():
        mine = pointwise[inputs_of.name] & ~_of_other_rules(t) & tasks_of(t, "elementwise", "copy")
        return _alike(t, mine & (t.tasks.end - t.tasks.start >= MIN_SIZED_NS))
    shaped = np.flatnonzero(pointwise[inputs_of.name] & inputs_of.is_known)
    if not len(shaped):
        return size
    asked = shaped[~_of_other_rules(t)[shaped]]
    code = inputs_of.shapes[asked].astype(np.int64) * len(inputs_of.texts) + inputs_of.types[asked]
    _, first, inverse = grouped(code)
    keys = zip(inputs_of.shapes[asked[first]].tolist(), inputs_of.types[asked[first]].tolist(), strict=True)
    sizes = [output_size(inputs_of.texts[shape], inputs_of.texts[kind]) for shape, kind in keys]
    size[asked] = np.array(sizes, np.int64)[inverse]
    size[~tasks_of(t, "elementwise", "copy")] = 0
    return size


def _alike(t: Tables, mine: Mask, *columns: npt.NDArray[np.integer]) -> Ints:
    """Return a number for each task that neighbours on a stream share which are alike, 0 for others.

    They take about the same time, and have the same values in the columns.
    """
    group, length = np.zeros(len(mine), np.int64), np.maximum(t.tasks.end - t.tasks.start, 1)
    for tasks in t.streams.values():
        one, two = tasks[:-1], tasks[1:]
        ratio = length[two] / length[one]
        alike = mine[one] & mine[two] & (np.maximum(ratio, 1 / ratio) <= MAX_TIME_RATIO)
        for column in columns:
            alike &= column[one] == column[two]
        group[tasks] = np.where(mine[tasks], 1 + np.append(0, np.cumsum(~alike))[: len(tasks)], 0)
    return group


def _of_other_rules(t: Tables) -> Mask:
    taken = np.zeros(len(t.tasks.row), bool)
    for attention in t.attention:
        taken[attention.between] = True
    launch = t.tasks.launch
    called = t.trace.events.start[np.maximum(launch, 0)]
    mine: Mask = taken | ((launch >= 0) & contains(t.updates, called))
    return mine


_FUNCTOR = (
    r"CUDAFunctor(?:OnSelf|OnOther)?_(\w+?)\b|\b(\w+?)(?:Functor|OpListFunctor)\b"
    r"|\b(\w+?)_(?:kernel_impl|kernel_cuda|cuda_kernel|kernel)\b"
)

_WRAPPERS = r"^(Binary|B?Unary|AUnary|BUnary|gpu|\w*elementwise|\w*multi_tensor_apply|gpu_kernel_impl\w*|launch\w*)$"


def functor(kernel: str) -> str:
    """Return what a pointwise kernel of torch's computes ("add", "Mul", "gelu"), the begin of its name if unknown."""
    for match in re.finditer(_FUNCTOR, kernel):
        name = next(part for part in match.groups() if part)
        if not re.match(_WRAPPERS, name):
            return name
    return kernel[:40]
