"""Equal rows: work on rows that a view, a gather or a repeat made equal. Before it, there are fewer rows.

How many rows differ at most follows from where they come from; their contents need not be looked at. Equality goes on
through operators that compute each row of their result of the same row of their arguments: pointwise ones, products of
rows, batched products and factorisations, what works on each image, sums and norms along other dimensions, and copies.
Products of rows that are joined or added up of such parts are those of `enlarged`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from diagnose.dataflow.copies import MAX_PARTS, Argument, Axes, Copies, axes_of, copies_in, shared_copies
from diagnose.dataflow.graph import Graph, Work, base_name, is_copy, is_pointwise, is_reduction, plain_name
from diagnose.model.dataflow import Frame, Operator, Use
from diagnose.model.limits import MAJORITY
from diagnose.model.shapes import num_elements

__all__ = ["BY_ROW", "CONVOLUTIONS", "NORMS", "EqualRows", "equal_rows", "mapped_rows"]

_VIEWS = frozenset({"expand", "unfold", "as_strided"})  # that may show an element in several places
_GATHERS = frozenset({"index_select", "index", "embedding"})
_JOINS = frozenset({"cat", "stack"})
BY_ROW = {"mm": 0, "linear": 0, "addmm": 1, "_addmm": 1}  # products, and which argument has the rows
CONVOLUTIONS = frozenset({"convolution", "_convolution", "mkldnn_convolution", "cudnn_convolution"})
_FILLS = frozenset({"ones", "ones_like", "new_ones", "full", "full_like", "new_full"})
NORMS = frozenset({"native_layer_norm", "_fused_rms_norm"})
# These work on each matrix, image or head of a batch alone; their first argument has the batch, or all have it.
_MATRICES = re.compile(r"bmm|baddbmm|_?linalg_(?!vector_norm).*|_?cholesky.*|triangular_solve|tri[lu]|diag_embed")
_IMAGES = re.compile(
    r".*(avg|max)_pool.*|_?upsample_.*|(constant|reflection|replication)_pad\w*|native_group_norm|im2col|col2im"
)
_HEADS = re.compile(r"_?scaled_dot_product.*|grid_sampler.*")
_DIMENSIONS = re.compile(r"\bdims?=[(\[]?(-?\d+(?:, ?-?\d+)*)")


class EqualRows(NamedTuple):
    """Operators that compute rows which equal others, all of one origin."""

    work: Work
    value_line: Frame | None  # that made the rows equal
    num_rows: int  # of what it repeats, where that takes longest
    avoidable: float  # share of the work's time
    is_by_pixel: bool = False  # rows are the channels of pixels or positions


class _Rows(NamedTuple):
    """What an operator computes by row."""

    result: Use  # with the dimension of what is joined as two
    kept: tuple[int, ...]  # its dimensions along which rows lie
    arguments: list[Argument]
    copies: tuple[Copies, ...] = ()  # that the operator makes itself


class _Repeated(NamedTuple):
    """Rows of one operator that equal others."""

    origin: int  # the operator that repeats them
    num_rows: int  # that differ
    needed: float  # share of the rows
    is_by_pixel: bool


def equal_rows(graph: Graph) -> tuple[EqualRows, ...]:
    """Return the last step's work on rows that were repeated, the longest first."""
    axes: dict[int, Axes] = {}  # by value
    views: dict[int, int] = {}  # by value, the last operator that may have made a view which repeats it
    found: dict[int, _Repeated] = {}
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if one.is_view and plain_name(one.name) in _VIEWS:
            views |= {use.value: i for use in one.reads}
        rows = _rows(graph, i)
        if rows is None:
            continue
        each = [(a, [*copies_in(a, axes.get(a.use.value, ()), views.get(a.use.value, i))]) for a in rows.arguments]
        copies = [*shared_copies(rows.result.shape, each, rows.kept, i), *rows.copies]
        if not copies:
            continue
        for use in one.writes:
            seen = rows.result if use == one.writes[0] else use
            mine = [c for c in copies if all(seen.shape[d : d + 1] == rows.result.shape[d : d + 1] for d in c.dims)]
            if num_elements(use.shape) == num_elements(graph.values[use.value].shape):
                axes[use.value] = axes_of(seen, mine)
        if not _is_copy(one) or any(use.value in axes for use in one.reads):
            found[i] = _repeated(rows, copies)
    return _records(graph, found)


def _records(graph: Graph, found: dict[int, _Repeated]) -> tuple[EqualRows, ...]:
    """Return the work of each origin; a copy is work where what reads it is."""
    origins: dict[tuple[Frame | None, bool], dict[int, _Repeated]] = defaultdict(dict)
    counted = set[int]()
    for i in sorted(found, reverse=True):
        one, rows = graph.operators[i], found[i]
        if not _is_copy(one) or not counted.isdisjoint(j for use in one.writes for j in graph.readers[use.value]):
            counted.add(i)
            origins[graph.operators[rows.origin].place, rows.is_by_pixel][i] = rows
    records = []
    for (value_line, is_by_pixel), each in origins.items():
        both = {i: graph.time((i, *graph.backward[i])) for i in each}
        most = each[max(both, key=lambda i: both[i])]
        saved = sum(ns * (1 - each[i].needed) for i, ns in both.items()) - _repeating_ns(graph, each)
        if saved <= 0:
            continue
        work = graph.work([*each, *(j for i in each for j in graph.backward[i])])
        records.append(EqualRows(work, value_line, most.num_rows, saved / max(sum(both.values()), 1), is_by_pixel))
    return tuple(sorted(records, key=lambda one: -one.work.share * one.avoidable))


def _repeating_ns(graph: Graph, each: Mapping[int, _Repeated]) -> float:
    """Return what it takes more to gather the results of some operators instead of what they are made of, ns."""
    gathers = {i for rows in each.values() if base_name(graph.operators[i := rows.origin]) in _GATHERS}
    taken = 0.0
    for i in each.keys() | gathers:
        use, by = graph.operators[i].writes[0], each[i].origin if i in each else i
        readers = {j for j in graph.readers[use.value] if graph.operators[j].phase != "backward"}
        is_taken = not readers <= each.keys()
        if by in gathers and is_taken == (i in each):
            share = num_elements(use.shape) / num_elements(graph.operators[by].writes[0].shape)
            taken += graph.time((by, *graph.backward[by])) * (share if is_taken else -share)
    return max(taken, 0.0)


def _repeated(rows: _Rows, copies: Sequence[Copies]) -> _Repeated:
    """Return how many rows of an operator differ, and what repeats most of them."""
    share = [c.num_distinct / c.labels.size for c in copies]
    repeated, last = {d for c in copies for d in c.dims}, len(rows.result.shape) - 1
    columns = [d for d in (last, 1) if d in rows.kept and d not in repeated][: last in rows.kept]
    alone = num_elements(rows.result.shape[d] for d in rows.kept if d not in repeated and d not in columns)
    is_by_pixel = min(repeated) > 1
    num_rows = alone * num_elements(c.num_distinct for c in copies)
    return _Repeated(copies[share.index(min(share))].origin, num_rows, math.exp(sum(map(math.log, share))), is_by_pixel)


def _is_copy(one: Operator) -> bool:
    return is_copy(one) or base_name(one) in _LAYOUTS


def mapped_rows(one: Operator) -> tuple[Use, int] | None:
    """Return the rows that a product or a 1x1 convolution multiplies by weights, and the axis of their columns."""
    name, at = base_name(one), BY_ROW.get(base_name(one))
    if at is not None and len(one.reads) > at + 1:
        return one.reads[at], len(one.reads[at].shape) - 1
    if name not in CONVOLUTIONS or len(one.reads) < 2 or "transposed=True" in one.attributes:
        return None
    rows, weights = one.reads[:2]
    has_groups = weights.shape[1:2] != rows.shape[1:2]
    is_by_pixel = num_elements(weights.shape[2:]) == 1 and rows.shape[2:] == one.writes[0].shape[2:]
    return (rows, 1) if is_by_pixel and not has_groups else None


def _rows(graph: Graph, i: int) -> _Rows | None:
    """Return what an operator computes by row, None if it mixes all of them, or if its result says nothing."""
    one = graph.operators[i]
    if one.phase in ("backward", "optimizer") or one.draws or not one.writes or not one.reads:
        return None
    if all((made := graph.values[use.value]).kind == "constant" or made.zeros == 1 for use in one.writes):
        return None
    if base_name(one) in _LAYOUTS:
        return _LAYOUTS[base_name(one)](one, i)
    num_dims = len(one.writes[0].shape)
    if is_pointwise(one) or is_copy(one):
        reads = (use for use in one.reads if len(use.shape) <= num_dims and not _is_filled(graph, use))
        return _Rows(one.writes[0], tuple(range(num_dims)), [_at_end(use, num_dims) for use in reads])
    dims, read = _alone(one)
    return _by_row(one.writes[0], dims, read) if dims else _reduced(one)


def _alone(one: Operator) -> tuple[list[int], Sequence[Use]]:
    """Return the dimensions along which an operator computes rows, images or matrices, and what has them."""
    name, result, first = base_name(one), one.writes[0].shape, one.reads[0]
    linear, num_batch = mapped_rows(one), 0
    if linear is not None:
        return [d for d in range(len(result)) if d != linear[1]], linear[:1]
    if name in NORMS:
        stats = one.writes[-1].shape
        return [d for d, size in enumerate(result) if stats[d : d + 1] == (size,)], [first]
    if name in CONVOLUTIONS or _IMAGES.fullmatch(name):
        return [0], [first]
    if _MATRICES.fullmatch(name):
        num_batch = max(len(first.shape), len(result)) - 2
    elif _HEADS.fullmatch(name):
        num_batch = 1 if name.startswith("grid") else 2
    return [*range(num_batch)], one.reads


def _reduced(one: Operator) -> _Rows | None:
    """Return the rows that an operator adds up, sorts or normalizes along other dimensions."""
    first, num_dims = one.reads[0], len(one.writes[0].shape)
    found, sorts = _DIMENSIONS.search(one.attributes), base_name(one) in ("sort", "topk")
    if not (sorts or (found and is_reduction(one))):
        return None
    reduced = {int(d) % max(len(first.shape), 1) for d in (found[1] if found else "-1").split(",")}
    kept = [d for d in range(len(first.shape)) if d not in reduced]
    to = kept if len(first.shape) == num_dims else range(len(kept))
    return _Rows(one.writes[0], tuple(to), [Argument(first, dict(zip(kept, to, strict=True)))])


def _by_row(result: Use, kept: Iterable[int], reads: Iterable[Use]) -> _Rows | None:
    """Return rows that lie along the same dimensions of the result and of what is read."""
    dims = tuple(d for d in kept if d < len(result.shape))
    read = [use for use in reads if len(use.shape) > max(dims, default=0)]
    if not read or any(use.shape[d] not in (1, result.shape[d]) for use in read for d in dims):
        return None
    return _Rows(result, dims, [Argument(use, {d: d for d in dims}) for use in read])


def _at_end(use: Use, num_dims: int) -> Argument:
    """Return an argument whose dimensions are the last ones of so many."""
    return Argument(use, {d: d + num_dims - len(use.shape) for d in range(len(use.shape))})


def _dimension(one: Operator) -> int:
    """Return the dimension that an operator is called with, 0 if with none."""
    found = _DIMENSIONS.search(one.attributes)
    return int(found[1]) % len(one.writes[0].shape) if found else 0


def _joined(one: Operator, _i: int) -> _Rows:
    """Return the rows of what is joined; windows at equal distances are a view that shows elements several times."""
    first, result, dim = one.reads[0], one.writes[0], _dimension(one)
    is_cat, steps = base_name(one) == "cat", {b.offset - a.offset for a, b in pairwise(one.reads)}
    if len({use._replace(offset=0) for use in one.reads}) == len(steps) == 1 and min(steps) > 0:
        (step,), num = steps, len(one.reads)
        windows = first._replace(shape=(num, *first.shape), stride=(step, *first.stride))
        if is_cat:
            size, stride = first.shape[dim], result.stride[dim]
            shape = (*result.shape[:dim], num, size, *result.shape[dim + 1 :])
            result = result._replace(shape=shape, stride=(*result.stride[:dim], size * stride, *result.stride[dim:]))
        dims = {0: dim} | {d + 1: d + (d >= dim) for d in range(len(first.shape))}
        return _Rows(result, tuple(range(len(result.shape))), [Argument(windows, dims)])
    kept = [d for d in range(len(result.shape)) if d != dim]
    arguments = [Argument(use, {d - (d > dim and not is_cat): d for d in kept}) for use in one.reads]
    return _Rows(result, tuple(kept), [a for a in arguments if len(a.use.shape) == len(kept) + is_cat])


def _gathered(one: Operator, i: int) -> _Rows | None:
    """Return the rows that a gather takes; which ones is not known, but that they are no more than there are."""
    source, result, indices = one.reads[0], one.writes[0], one.reads[1:]
    num, size = max(len(indices), 1), len(result.shape)
    at = _dimension(one) if base_name(one) == "index_select" else one.attributes.partition("tensor")[0].count("None")
    width = size - len(source.shape) + num  # dimensions of the indices
    if width < 1 or "None" in one.attributes.partition("tensor")[2] or any(use.dtype == "bool" for use in indices):
        return None
    taken = range(at, at + width)
    dims = {d if d < at else d - width + num: d for d in range(size) if d not in taken}
    arguments = [Argument(source, dims)]
    arguments += [_at_end(use, at + width) for use in indices]
    there, sizes = num_elements(source.shape[at : at + num]), result.shape[at : at + width]
    if there > (1 - MAJORITY) * num_elements(sizes) or num_elements(sizes) > MAX_PARTS:
        return _Rows(result, tuple(range(size)), arguments)
    order = np.random.default_rng([n for use in indices for n in (use.value, use.offset)])
    labels = order.permutation(num_elements(sizes)).reshape(sizes) % there
    return _Rows(result, tuple(dims.values()), arguments[:1], (Copies(tuple(taken), labels, i),))


def _tiled(one: Operator, i: int) -> _Rows:
    """Return the rows of a tensor that is repeated along its dimensions, or new ones before them."""
    source, result = one.reads[0], one.writes[0]
    shift = len(result.shape) - len(source.shape)
    sizes = (*(1 for _ in range(shift)), *source.shape)
    tiled = [d for d, size in enumerate(result.shape) if size > sizes[d]]
    copies = (Copies((d,), np.arange(result.shape[d]) % sizes[d], i) for d in tiled)
    dims = {d - shift: d for d in range(shift, len(result.shape)) if d not in tiled}
    return _Rows(result, tuple(dims.values()), [Argument(source, dims)], tuple(copies))


_LAYOUTS: Mapping[str, Callable[[Operator, int], _Rows | None]] = {
    **dict.fromkeys(_JOINS, _joined),
    **dict.fromkeys(_GATHERS, _gathered),
    "repeat": _tiled,
}


def _is_filled(graph: Graph, use: Use) -> bool:
    """Return whether an argument is a number that fills a tensor."""
    made_by = graph.producer(use.value)
    return made_by is not None and base_name(made_by) in _FILLS
