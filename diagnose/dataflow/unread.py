"""Results of which a part is read: what is selected afterwards could be selected before.

A result that is not read at all is dead work. What a pointwise operator makes in vain it reads in vain as well; a
product with weights and a norm do so of whole rows. The backward pass has gradients of zero for the other part, and
computes them for nothing too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from diagnose.dataflow.graph import Graph, base_name, is_pointwise, is_product
from diagnose.dataflow.rows import BY_ROW, CONVOLUTIONS, NORMS
from diagnose.model.dataflow import Operator, Use
from diagnose.model.limits import MAJORITY
from diagnose.model.shapes import num_elements

__all__ = ["Unread", "unread_results"]

SORT_SAVED = 0.7  # of a sort, by the selection of a few from each row

_SORTS = frozenset({"sort", "argsort", "msort"})
_GATHERS = frozenset({"index", "index_select"})
_BY_ROW = {**BY_ROW, **dict.fromkeys(NORMS, 0)}  # which argument has the rows


class Unread(NamedTuple):
    """One operator, and what it computes that is not read."""

    operator: int
    avoidable: float  # share of its time
    value: int
    unread: float  # share of the elements
    is_sort: bool


class _Need(NamedTuple):
    """What is read of a result."""

    share: float  # of its elements
    is_by_row: bool  # whole rows


_ALL = _Need(1.0, is_by_row=True)


def unread_results(graph: Graph, rows: Iterable[int]) -> Iterator[Unread]:
    """Yield what computes results of which most is not read."""
    needs: dict[int, _Need] = {}
    for i in sorted(rows, reverse=True):
        one = graph.operators[i]
        name = base_name(one)
        is_free = name in _SORTS or name in CONVOLUTIONS or is_product(one) or is_pointwise(one)
        if not graph.computes(i) or one.phase == "optimizer" or not (is_free or name in NORMS):
            continue
        uses = one.writes[:1] if name in NORMS else one.writes  # statistics are the backward pass's
        value, need = max(((use.value, _need(graph, use.value, needs)) for use in uses), key=lambda pair: pair[1].share)
        needs[i] = need
        unread = 1 - need.share
        is_own = one.phase != "backward"  # which gradients autograd computes, nobody chooses
        if is_own and MAJORITY <= unread < 1 and (is_free or need.is_by_row):
            is_sort = name in _SORTS
            for j in (i, *graph.backward[i]):
                yield Unread(j, SORT_SAVED if is_sort else unread, value, unread, is_sort)


def _need(graph: Graph, value: int, needs: dict[int, _Need]) -> _Need:
    """Return what is read of a value; what changes all of it in place reads it too."""
    if graph.lives_on[value] or (graph.later[value] >= 0 and not _changes_all(graph, value)):
        return _ALL
    parts: dict[tuple[object, ...], float] = defaultdict(float)
    is_by_row = True
    # A function of the backward pass has gradients of zero where the result is not read.
    for i in set(graph.readers[value]).difference(graph.backward[graph.values[value].producer]):
        for use in (each for each in graph.operators[i].reads if each.value == value):
            reader, seen_as = _in_forward(graph, i, use)
            one, need = graph.operators[reader], _of_use(graph, reader, seen_as, needs)
            seen = num_elements(size for size, step in zip(seen_as.shape, seen_as.stride, strict=True) if step)
            part = (seen_as.offset, seen_as.shape, seen_as.stride, reader * (base_name(one) in _GATHERS))
            parts[part] = max(parts[part], seen * need.share)
            is_row = seen_as.stride[-1:] == (1,) and seen_as.shape[-1:] == graph.values[value].shape[-1:]
            is_by_row = is_by_row and is_row and need.is_by_row
    return _Need(min(sum(parts.values()) / max(num_elements(graph.values[value].shape), 1), 1.0), is_by_row)


def _changes_all(graph: Graph, value: int) -> bool:
    """Return whether a pointwise operator changes each element of a value in place, and something reads that."""
    one, size = graph.producer(graph.later[value]), num_elements(graph.values[value].shape)
    whole = one is not None and any(num_elements(use.shape) == size for use in one.writes)
    return one is not None and whole and is_pointwise(one) and bool(graph.readers[graph.later[value]])


def _in_forward(graph: Graph, i: int, use: Use) -> tuple[int, Use]:
    """Return what an operator reads, and of one of the backward pass what its function reads, if that is as much."""
    forward = graph.operators[i].forward
    if graph.operators[i].phase == "backward" and forward >= 0:
        reads = (each for each in graph.operators[forward].reads if each.value == use.value)
        same = (each for each in reads if num_elements(each.shape) >= num_elements(use.shape))
        return next(((forward, each) for each in same), (i, use))
    return i, use


def _of_use(graph: Graph, i: int, use: Use, needs: dict[int, _Need]) -> _Need:
    """Return what an operator needs of what it sees."""
    one = graph.operators[i]
    if base_name(one) in _GATHERS and use in one.reads[:1] and one.writes[0].shape[-1:] == use.shape[-1:]:
        share = num_elements(one.writes[0].shape) / max(num_elements(use.shape), 1)
        return _Need(min(share, 1.0), is_by_row=True)
    return _passed_on(one, use, needs.get(i, _ALL))


def _passed_on(one: Operator, use: Use, need: _Need) -> _Need:
    """Return what an operator needs of an argument, if so much of its result is needed."""
    if is_pointwise(one):
        return need
    at = _BY_ROW.get(base_name(one))
    return need if at is not None and need.is_by_row and use in one.reads[at : at + 1] else _ALL
