"""Rows that have no effect: a loss leaves their targets out, or they are multiplied by zero, and no gradient returns.

From there back, what works row by row computes them for nothing, up to the first operator that mixes rows: what was
before it has an effect through the other rows. Padding is more than that: all layers compute it for nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from diagnose.dataflow.graph import Graph, base_name, is_copy, is_pointwise, is_reduction, reached
from diagnose.dataflow.rows import BY_ROW
from diagnose.model.dataflow import Frame, Operator, Use, Value
from diagnose.model.shapes import num_elements

__all__ = ["MIN_IGNORED", "IgnoredRows", "ignored_rows", "keeps_rows", "leading", "zero_share"]

MIN_IGNORED = 0.5  # of the rows
_LOSSES = frozenset({"nll_loss_forward", "nll_loss2d_forward"})  # of classes: the targets are the second argument
_SELECTS = frozenset({"index", "index_select", "gather", "masked_select"})
_LEAVES_OUT = _SELECTS | {"mul", "where", "masked_fill"}
_BY_ELEMENT = frozenset({"mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits"})
_ROW_ARGUMENT = {**BY_ROW, **dict.fromkeys(("bmm", "native_layer_norm", "_fused_rms_norm", *_SELECTS, *_LOSSES), 0)}
_DIMS = re.compile(r"\bdim=\(?(-?\d+(?:, -?\d+)*)")

_Key: TypeAlias = tuple[tuple[Frame, ...], str, tuple[int, ...]]  # lines, name and shape


class IgnoredRows(NamedTuple):
    """One operator, and the share of its rows that have no effect."""

    operator: int
    share: float
    value: int  # the gradient in which they are zero first


class _Rows(NamedTuple):
    """The rows of an operator's result."""

    num: int
    share: float  # of them that have no effect; the most that it may be where no gradient was measured
    is_measured: bool
    value: int  # of ``IgnoredRows``


def ignored_rows(graph: Graph, operators: Iterable[int]) -> Iterator[IgnoredRows]:
    """Yield the operators of both passes that compute rows of which most have no effect.

    A line that computes the same before them, as that of a layer which runs several times, is none of theirs.
    """
    forward = [i for i in operators if graph.operators[i].phase not in ("backward", "optimizer")]
    repeated: set[_Key] = set()
    tail = _tail(graph, forward, repeated)
    while True:
        # What others depend on, without these.
        every = reached(tail, lambda i: [j for j in graph.makers(i) if graph.operators[j].step == graph.last_step])
        before = {_key(graph.operators[i]) for i in every.difference(tail) if graph.operators[i].writes}
        again = before & {_key(graph.operators[i]) for i in tail}
        if not again:
            break
        repeated |= again
        tail = _tail(graph, forward, repeated)
    needless: set[int] = set()  # in the forward pass too: nothing else reads these rows
    for i, found in sorted(tail.items(), reverse=True):
        readers = {j for use in graph.operators[i].writes for j in graph.readers[use.value]}
        is_source = i == _source_of(graph, found)
        if is_source or all(graph.operators[j].phase == "backward" or j in needless for j in readers):
            needless.add(i)
            if not is_source or base_name(graph.operators[i]) in _LOSSES:
                yield IgnoredRows(i, found.share, found.value)
        if is_source and base_name(graph.operators[i]) in _SELECTS:
            continue  # it has to put zeros into the other rows
        for j in graph.backward[i]:
            if any(leading(use, found.num) or num_elements(use.shape) == found.num for use in graph.operators[j].reads):
                yield IgnoredRows(j, found.share, found.value)


def _key(one: Operator) -> _Key:
    return one.stack, one.name, one.writes[0].shape


def _source_of(graph: Graph, found: _Rows) -> int:
    return graph.operators[graph.values[found.value].producer].forward


def _tail(graph: Graph, forward: list[int], repeated: set[_Key]) -> dict[int, _Rows]:
    """Return the operators of the forward pass whose rows have no effect for the most part."""
    tail: dict[int, _Rows] = {}
    seen: dict[int, list[_Rows]] = defaultdict(list)  # by source; also where it turns out that most rows have an effect
    differentiable, with_gradient = _differentiable(graph, forward), set[int]()
    for i in reversed(forward):
        one = graph.operators[i]
        readers = {j for use in one.writes for j in graph.readers[use.value]}
        if i not in differentiable or not (graph.backward[i] or not with_gradient.isdisjoint(readers)):
            continue
        with_gradient.add(i)
        found = _before_others(graph, i, readers & with_gradient, tail) or _source(graph, i)
        if found is not None and _key(one) not in repeated:
            seen[found.value].append(found)
            if found.share >= MIN_IGNORED:
                tail[i] = found
    shares = {value: _share_of(graph, value, rows) for value, rows in seen.items()}
    others = ((i, one) for i, one in tail.items() if i != _source_of(graph, one))
    wide = {one.value for i, one in others if num_elements(graph.operators[i].writes[0].shape) > one.num}
    return {
        i: one if one.is_measured else one._replace(share=min(one.share, shares[one.value]))
        for i, one in tail.items()
        if shares[one.value] >= MIN_IGNORED and one.value in wide
    }


def _differentiable(graph: Graph, forward: list[int]) -> set[int]:
    """Return the operators with others in the backward pass, and what may pass a gradient on without, as a sum does."""
    found: set[int] = set()
    for i in forward:
        one = graph.operators[i]
        passes_on = is_pointwise(one) or is_copy(one)
        if graph.backward[i] or (passes_on and any(graph.values[use.value].producer in found for use in one.reads)):
            found.add(i)
    return {i for i in found if graph.operators[i].writes and not graph.operators[i].is_view}


def _share_of(graph: Graph, value: int, rows: list[_Rows]) -> float:
    """Return the share of rows that a source leaves out; of targets that are one number at an end, that end's."""
    measured = [one.share for one in rows if one.is_measured]
    if measured:
        return max(measured)
    targets = graph.operators[graph.operators[graph.values[value].producer].forward].reads[1].value
    while (one := graph.producer(targets)) is not None and is_copy(one) and graph.values[targets].padded < 0:
        targets = one.reads[0].value
    return min(graph.values[targets].padded, *(one.share for one in rows))


def _source(graph: Graph, i: int) -> _Rows | None:
    """Return the rows that an operator leaves out: its argument's gradient is zero there, whatever its result's is."""
    one, gradient = graph.operators[i], _gradient(graph, i)
    name = base_name(one)
    before = (gradient.zero_rows, gradient.zeros) if gradient is not None else (0.0, 0.0)
    found: list[_Rows] = []
    for use in (use for j in graph.backward[i] for use in graph.operators[j].writes):
        value = graph.values[use.value]
        if name in _LOSSES:
            num = num_elements(one.reads[1].shape)
            share = zero_share(value, num)
            found.append(_Rows(num, 1.0 if share is None else share, share is not None, use.value))
        elif name in _LEAVES_OUT and 1 > value.zero_rows >= MIN_IGNORED > before[0]:
            found.append(_Rows(num_elements(value.shape[:-1]), value.zero_rows, True, use.value))
        elif name in _LEAVES_OUT and 1 > value.zeros >= MIN_IGNORED > before[1]:
            found.append(_Rows(num_elements(value.shape), value.zeros, True, use.value))
    # Of two arguments the one with fewer and longer rows.
    return min((one for one in found if one.share >= MIN_IGNORED), key=lambda one: one.num, default=None)


def _before_others(graph: Graph, i: int, readers: Iterable[int], tail: dict[int, _Rows]) -> _Rows | None:
    """Return the rows of an operator's result, if it and all that reads them work row by row."""
    one, found = graph.operators[i], list[_Rows]()
    made = {use.value for use in one.writes}
    for j in readers:
        for use in (use for use in graph.operators[j].reads if use.value in made):
            rows = tail.get(j)
            num = _rows_before(graph.operators[j], use, rows.num, one.writes[0]) if rows is not None else 0
            if rows is None or not num:
                return None
            found.append(rows._replace(num=num, share=1 - (1 - rows.share) * rows.num / num))
    if len({rows.num for rows in found}) != 1 or not any(keeps_rows(one, use, found[0].num) for use in one.reads):
        return None
    needed: dict[int, float] = {}
    for rows in found:
        needed[rows.value] = max(needed.get(rows.value, 0.0), 1 - rows.share)
    least = min(found, key=lambda rows: rows.share)._replace(share=1 - sum(needed.values()))
    gradient = _gradient(graph, i)
    if gradient is None:
        return least
    measured = zero_share(gradient, least.num)
    if measured is not None:
        return least._replace(share=measured, is_measured=True)
    return least._replace(share=min(least.share, gradient.zeros)) if gradient.zeros >= 0 else least


def _gradient(graph: Graph, i: int) -> Value | None:
    """Return the gradient of an operator's result: what others of the backward pass hand to its own."""
    size = num_elements(graph.operators[i].writes[0].shape)
    for value in (graph.values[use.value] for j in graph.backward[i] for use in graph.operators[j].reads):
        is_own = value.producer < 0 or value.producer in graph.backward[i]
        if not is_own and graph.operators[value.producer].phase == "backward" and num_elements(value.shape) == size:
            return value
    return None


def zero_share(value: Value, num: int) -> float | None:
    """Return which share of the rows are zero, None where that was not seen; a row may be a single number."""
    rows = num_elements(value.shape[:-1])
    if value.zero_rows >= 0 and value.shape[-1:] > (1,) and rows >= num and rows % num == 0:
        return value.zero_rows
    return value.zeros if value.zeros >= 0 and num_elements(value.shape) == num else None


def _rows_before(one: Operator, use: Use, num: int, made: Use) -> int:
    """Return how many rows a result has of which an operator reads so many, 0 if it does not work row by row."""
    if not keeps_rows(one, use, num):
        return 0
    size, whole = num_elements(use.shape), num_elements(made.shape)
    if size == whole or leading(made, num):
        return num
    return num * whole // size if use.shape[-1:] == made.shape[-1:] and size < whole else 0


def keeps_rows(one: Operator, use: Use, num: int) -> bool:
    """Return whether an operator computes each of so many rows of an argument without the others."""
    name, write, rows = base_name(one), one.writes[0], leading(use, num)
    if name in _ROW_ARGUMENT:
        is_whole = name in _LOSSES and num_elements(use.shape) == num * use.shape[min(len(use.shape), 2) - 1]
        is_one = name != "bmm" or use.shape[0] == 1  # as torch.einsum multiplies two matrices
        is_one &= name not in BY_ROW or len(use.shape) - 1 not in rows  # a product sums over these
        return is_one and (is_whole or bool(rows)) and use in one.reads[_ROW_ARGUMENT[name] :][:1]
    if is_pointwise(one) or is_copy(one) or name in _BY_ELEMENT:
        return bool(rows) and rows == leading(write, num) and len(use.shape) == len(write.shape)
    named = _DIMS.search(one.attributes) if is_reduction(one) and use.shape else None
    if named is None:
        return False
    dims = {int(dim) % len(use.shape) for dim in named[1].split(",")}
    if use.shape == write.shape:  # a softmax
        return num_elements(size for k, size in enumerate(use.shape) if k not in dims) == num
    return bool(rows) and dims.isdisjoint(rows)


def leading(use: Use, num: int) -> frozenset[int]:
    """Return the dimensions that lie outside in memory and have so many elements, none if there are no such."""
    found, size = set[int](), 1
    for k in sorted(range(len(use.shape)), key=lambda k: -use.stride[k]):
        if size == num:
            break
        if use.shape[k] > 1:
            found.add(k)
            size *= use.shape[k]
    return frozenset(found) if size == num else frozenset()
