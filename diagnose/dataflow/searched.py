"""Searches: all of what never changes is compared in each step, and few of it are selected.

An edge list is scanned for the neighbours of some nodes, labels are compared with one class. What the comparison reads
is the same in each step, so that an order of it or groups by value, made once, give the few directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from diagnose.dataflow.graph import Graph, base_name, is_pointwise
from diagnose.model.shapes import num_elements

__all__ = ["Search", "searches"]

_SELECTS = frozenset({"nonzero", "nonzero_static", "masked_select", "index", "where"})
_COMPARES = frozenset({"index", "index_select", "gather", "isin", "embedding"})
MIN_UNSELECTED = 0.95  # of what is compared: where more are selected, taking them is the larger part


class Search(NamedTuple):
    """One operator of a search."""

    operator: int
    value: int  # that it goes through, the same in each step
    left: float  # share that is not selected


def searches(graph: Graph, rows: list[int]) -> Iterator[Search]:
    """Yield the operators of the last step's searches, each of which computes as many truth values as it reads."""
    seen = set[int]()
    for i in rows:
        one = graph.operators[i]
        masks = [use for use in one.reads if use.dtype == "bool"] if base_name(one) in _SELECTS else []
        for use in masks:
            left, num = graph.values[use.value].zeros, num_elements(use.shape)
            if left < MIN_UNSELECTED:
                continue
            compared, constant = _compared(graph, use.value, num)
            if constant >= 0:
                yield from (Search(j, constant, left) for j in sorted({i, *compared} - seen))
                seen |= {i, *compared}


def _compared(graph: Graph, value: int, num: int) -> tuple[set[int], int]:
    """Return what makes so many truth values, and the value that stays the same of which they are made, -1 if none."""
    found, constant, waiting = set[int](), -1, [value]
    while waiting:
        made_by = graph.values[waiting.pop()].producer
        one = graph.operators[made_by] if made_by >= 0 else None
        if one is None or made_by in found or not (is_pointwise(one) or base_name(one) in _COMPARES):
            continue
        found.add(made_by)
        for use in one.reads:
            if num_elements(use.shape) == num:
                constant = use.value if graph.values[use.value].role == "constant" else constant
                waiting.append(use.value)
    return found, constant
