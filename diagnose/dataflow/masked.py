"""Rows that are multiplied by zero: what works row by row before the product, or on the zeros, does so for nothing.

A window, a cutoff or a mask is zero for some rows. A product with it needs nothing of these rows of its other factor,
whatever made them, and what reads its result gets zeros: their sums need only the other rows. The same holds for the
gradients, which the backward pass multiplies by the same factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from diagnose.dataflow.graph import Graph, base_name, is_copy, is_pointwise, is_product
from diagnose.dataflow.ignored import IgnoredRows, keeps_rows, leading, zero_share
from diagnose.model.dataflow import Operator
from diagnose.model.shapes import num_elements

__all__ = ["masked_rows"]

MIN_MASKED = 0.3  # of the rows: pairs beyond a cutoff are a third, padding is often a quarter
_SELECTS = frozenset({"where", "masked_fill"})  # a mask: where it is true, or where it is not, is seen by the result
_SUMS = frozenset({"sum", "mean"})


class _Mask(NamedTuple):
    """A factor with one number, or a selection with one truth value, for each row."""

    value: int
    num: int  # rows


def masked_rows(graph: Graph, rows: list[int]) -> Iterator[IgnoredRows]:
    """Yield the operators that compute rows of which most are multiplied by zero; a row of the first factor counts."""
    known, seen = set(rows), set[int]()
    for mask, share in sorted(_masks(graph, rows).items()):
        zero = _zero(graph, known, mask)
        # Operators that take sums over rows of which some are zero: a gradient of a weight is a product.
        summed = {
            i
            for i in {i for value in zero for i in graph.readers[value]} & known
            if base_name(one := graph.operators[i]) in _SUMS or is_product(one)
            if not _makes_zero(one, zero)
            if any(u.value in zero and leading(u, mask.num) and not keeps_rows(one, u, mask.num) for u in one.reads)
        }
        zero.discard(mask.value)
        before = _before(graph, known, mask, zero, summed)
        if any(num_elements(graph.operators[i].writes[0].shape) > mask.num for i in before):
            found = {graph.values[value].producer for value in zero} | summed | before
            yield from (IgnoredRows(i, share, mask.value) for i in sorted(found - seen))
            seen |= found


def _masks(graph: Graph, rows: list[int]) -> dict[_Mask, float]:
    """Return what leaves rows out in the forward pass, with the share of the rows that are zero."""
    masks: dict[_Mask, float] = {}
    for i in rows:
        one, name = graph.operators[i], base_name(graph.operators[i])
        if one.phase in ("backward", "optimizer") or name not in {*_SELECTS, "mul"}:
            continue
        for use in one.reads:
            value, num = graph.values[use.value], num_elements(use.shape)
            share = value.zeros if name == "mul" else _share(graph, one, num) * (use.dtype == "bool")
            is_whole = num == num_elements(value.shape)
            if 1 > share >= MIN_MASKED and is_whole and num > 1 and leading(one.writes[0], num):
                masks[_Mask(use.value, num)] = share
    return masks


def _share(graph: Graph, one: Operator, num: int) -> float:
    """Return the share of the rows of a result that are zero, as far as it was looked at."""
    value = graph.values[one.writes[0].value]
    share = zero_share(value, num)
    return value.zeros if share is None else share


def _zero(graph: Graph, rows: set[int], mask: _Mask) -> set[int]:
    """Return the values that are zero in the mask's rows: products with it, and what is computed of these."""
    zero, waiting, seen = {mask.value}, sorted(graph.readers[mask.value]), set[int]()
    while waiting:  # in the order of the operators
        i = heappop(waiting)
        one = graph.operators[i]
        if i in seen or i not in rows:
            continue
        seen.add(i)
        if not one.writes or not leading(one.writes[0], mask.num):
            continue
        is_by_row = _makes_rows(graph.operators[one.forward] if one.forward >= 0 else one, mask.num)
        reads = any(use.value in zero and leading(use, mask.num) for use in one.reads)
        if reads and is_by_row and _share(graph, one, mask.num) >= MIN_MASKED:
            zero.add(one.writes[0].value)  # further results are sums over the rows
            for reader in graph.readers[one.writes[0].value]:
                heappush(waiting, reader)
    return zero


def _before(graph: Graph, rows: set[int], mask: _Mask, zero: set[int], summed: set[int]) -> set[int]:
    """Return the operators that make rows which only operators read that need nothing of those that are left out."""
    found, seen = set[int](), set[int]()

    def is_needless(j: int, value: int) -> bool:
        one = graph.operators[j]
        makes = j in found or j in summed or _makes_zero(one, zero)
        return makes and all(leading(use, mask.num) for use in one.reads if use.value == value)

    makes_zero = {graph.values[value].producer for value in zero}
    waiting = [-i for j in (summed | makes_zero) & rows for i in graph.makers(j)]
    heapify(waiting)
    while waiting:  # the last one first: what reads its values has been looked at
        i = -heappop(waiting)
        one = graph.operators[i]
        if i in seen or i not in rows:
            continue
        seen.add(i)
        made = [use.value for use in one.writes]
        if one.phase == "optimizer" or not graph.computes(i) or not _makes_rows(one, mask.num):
            continue
        if mask.value in made or not zero.isdisjoint(made):
            continue
        read = [(j, value) for value in made for j in graph.readers[value]]
        if read and not any(graph.lives_on[v] for v in made) and all(is_needless(j, value) for j, value in read):
            found.add(i)
            for maker in graph.makers(i):
                heappush(waiting, -maker)
    return found


def _makes_zero(one: Operator, zero: set[int]) -> bool:
    return bool(one.writes) and one.writes[0].value in zero


def _makes_rows(one: Operator, num: int) -> bool:
    """Return whether an operator makes each of so many rows without the others."""
    if not one.writes or not leading(one.writes[0], num):
        return False
    return is_pointwise(one) or is_copy(one) or any(keeps_rows(one, use, num) for use in one.reads)
