"""Equal rows: work by row on rows that a gather, expand or repeat made equal. Before it, there are fewer rows.

How many rows differ at most follows from the rows that they are taken from; their contents need not be looked at.
Products of rows that are joined or added up of such parts are those of `enlarged`. Rows are all dimensions but that of
the columns: the last one, or the second one where a 1x1 convolution works on the channels of each pixel.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from diagnose.dataflow.graph import Graph, Work, base_name, is_pointwise, plain_name
from diagnose.model.dataflow import Frame, Operator, Use
from diagnose.model.shapes import num_elements

__all__ = ["BY_ROW", "CONVOLUTIONS", "MIN_REPEATED", "NORMS", "EqualRows", "equal_rows", "mapped_rows"]

MIN_REPEATED = 0.5  # of the rows: with fewer, the work moved before the gather also does rows that it leaves out
_GATHERS = frozenset({"index_select", "index", "embedding", "repeat", "repeat_interleave", "_to_copy", "clone"})
BY_ROW = {"mm": 0, "linear": 0, "addmm": 1, "_addmm": 1}  # products, and which argument has the rows
CONVOLUTIONS = frozenset({"convolution", "_convolution", "mkldnn_convolution", "cudnn_convolution"})
_FILLS = frozenset({"ones", "ones_like", "new_ones", "full", "full_like", "new_full"})
NORMS = frozenset({"native_layer_norm", "_fused_rms_norm"})


class EqualRows(NamedTuple):
    """Operators of one line that compute rows which equal others."""

    work: Work
    value_line: Frame | None  # that made the rows equal
    num_rows: int  # of what it repeats, where that takes longest
    avoidable: float  # share of the work's time
    is_by_pixel: bool = False  # rows are the channels of pixels or positions


class _Origin(NamedTuple):
    """What made rows equal, and what they are made of."""

    operator: int
    num_rows: int
    needed: float  # share of the rows
    is_by_pixel: bool = False


_Origins = dict[tuple[int, int, int], _Origin]  # by value, and stride and number of the columns


def equal_rows(graph: Graph) -> tuple[EqualRows, ...]:
    """Return the last step's work on rows that were repeated, the longest first."""
    lines: dict[tuple[Frame | None, Frame | None], dict[int, _Origin]] = defaultdict(dict)
    origins: _Origins = {}
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if one.phase in ("backward", "optimizer") or not one.writes or len(one.writes[0].shape) < 2:
            continue
        result = one.writes[0]
        made = graph.values[result.value]
        if made.kind == "constant" or made.zeros == 1 or not (len(one.writes) == 1 or base_name(one) in NORMS):
            continue
        found: list[_Origin] = []
        for axis in {1, len(result.shape) - 1}:
            origin = _by_row(graph, i, axis, origins)
            if origin is not None:
                found.append(origin)
            elif plain_name(one.name) in _GATHERS:
                origin = _gathered(one, i, axis)
            if origin is not None:
                origins[_key(result, axis)] = origin
        if found:
            origin = min(found, key=lambda each: each.needed)
            lines[one.place, graph.operators[origin.operator].place][i] = origin
    records = []
    for (_, value_line), rows in lines.items():
        both = {i: graph.time((i, *graph.backward[i])) for i in rows}
        most = rows[max(both, key=lambda i: both[i])]
        saved = sum(ns * (1 - rows[i].needed) for i, ns in both.items())
        work = graph.work([*rows, *(j for i in rows for j in graph.backward[i])])
        records.append(EqualRows(work, value_line, most.num_rows, saved / max(sum(both.values()), 1), most.is_by_pixel))
    return tuple(sorted(records, key=lambda one: -one.work.share * one.avoidable))


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


def _key(use: Use, axis: int) -> tuple[int, int, int]:
    return use.value, use.stride[axis], use.shape[axis]


def _num_rows(use: Use, axis: int) -> int:
    return num_elements(size for k, size in enumerate(use.shape) if k != axis)


def _num_distinct(use: Use, axis: int) -> int:
    """Return how many rows differ at most: those that a view repeats count once."""
    sizes = enumerate(zip(use.shape, use.stride, strict=True))
    return num_elements(size for k, (size, step) in sizes if step and k != axis)


def _repeated(i: int, use: Use, axis: int, rows: int) -> _Origin | None:
    """Return the origin of some rows that are those of a tensor."""
    num = _num_distinct(use, axis)
    is_by_pixel = axis < len(use.shape) - 1
    return _Origin(i, num, num / rows, is_by_pixel) if num <= (1 - MIN_REPEATED) * rows else None


def _gathered(one: Operator, i: int, axis: int) -> _Origin | None:
    """Return the origin of the rows that a gather, a repeat or a copy of repeated ones makes."""
    source, result = one.reads[0], one.writes[0]
    first = axis - len(result.shape) + len(source.shape)  # a gather may have more dimensions before the columns
    is_of_rows = axis == len(result.shape) - 1 or base_name(one) in ("repeat", "_to_copy", "clone")
    if len(source.shape) < 2 or first < 0 or not is_of_rows or source.shape[first] != result.shape[axis]:
        return None
    return _repeated(i, source, first, _num_rows(result, axis))


def _of_use(use: Use, i: int, axis: int, origins: _Origins) -> _Origin | None:
    """Return the origin of the rows of a tensor as an operator sees it."""
    if not use.stride[axis]:
        return None
    return origins.get(_key(use, axis)) or _repeated(i, use, axis, _num_rows(use, axis))


def _by_row(graph: Graph, i: int, axis: int, origins: _Origins) -> _Origin | None:
    """Return the origin of the rows that become the rows of the result, None if there is none or others join them."""
    one = graph.operators[i]
    result, name = one.writes[0], base_name(one)
    rows, linear = _num_rows(result, axis), mapped_rows(one)
    read: tuple[Use, ...]
    if linear is not None:
        read = (linear[0],) if linear[1] == axis else ()
    elif name in NORMS:
        is_of_rows = axis == len(result.shape) - 1 and num_elements(one.writes[-1].shape) == rows
        read = one.reads[:1] if is_of_rows else ()
    elif is_pointwise(one) and name not in ("cat", "stack"):
        spread = (_spread(use, result) for use in one.reads if not _is_filled(graph, use))
        read = tuple(use for use in spread if _num_distinct(use, axis) > 1)
    else:
        return None
    if any(_num_rows(use, axis) != rows for use in read):
        return None
    # Two arguments that are repeated along different dimensions make different rows.
    found = {
        (_of_use(use, i, axis, origins), tuple(k for k, step in enumerate(use.stride) if not step)) for use in read
    }
    return found.pop()[0] if len(found) == 1 else None


def _spread(use: Use, result: Use) -> Use:
    """Return an argument as it is spread over the dimensions of a result."""
    missing = len(result.shape) - len(use.shape)
    if missing < 0:
        return use
    pairs = zip(use.shape, use.stride, strict=True)
    stride = (*(0 for _ in range(missing)), *(step if size > 1 else 0 for size, step in pairs))
    return use._replace(shape=result.shape, stride=stride)


def _is_filled(graph: Graph, use: Use) -> bool:
    """Return whether an argument is a number that fills a tensor."""
    made_by = graph.producer(use.value)
    return made_by is not None and base_name(made_by) in _FILLS
