"""Matrices in which each element of a vector is compared with every other one, to reduce over those that come before.

Where a mask is the order of a vector's elements, and what it masks is a vector too, each row's reduction is over a
prefix of the sorted vector: a cumulative operator makes all of them in one pass.
"""

from __future__ import annotations

from typing import NamedTuple

from diagnose.dataflow.graph import Graph, Work, base_name
from diagnose.model.shapes import num_elements

__all__ = ["OrderMask", "order_masks"]

_COMPARES = frozenset({"ge", "gt", "le", "lt"})
_REDUCES = frozenset({"sum", "mean", "logsumexp", "amax", "amin", "max", "min"})
_BY_ROW = frozenset({"softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum", "sort"})  # need the whole row


class OrderMask(NamedTuple):
    """The operators on such a matrix, forward and backward."""

    work: Work
    length: int  # of the vector


def order_masks(graph: Graph) -> tuple[OrderMask, ...]:
    """Return the matrices of the last step, the longest first."""
    found = (_of(graph, i) for i in graph.of_step(graph.last_step))
    return tuple(sorted((one for one in found if one is not None), key=lambda one: -one.work.share))


def _of(graph: Graph, start: int) -> OrderMask | None:
    """Return what is done on the matrix that a comparison makes, None unless a sorted pass can do the same."""
    first = graph.operators[start]
    if base_name(first) not in _COMPARES or len(first.reads) != 2 or len(first.writes) != 1:
        return None
    (one, other), shape = first.reads, first.writes[0].shape
    length = num_elements(one.shape)
    if one.value != other.value or one.shape == other.shape or shape != (length, length):
        return None
    made, rows, is_reduced = {first.writes[0].value}, [start], False
    for i in (i for i in graph.of_step(graph.last_step) if i > start and not graph.operators[i].is_view):
        each = graph.operators[i]
        if made.isdisjoint(use.value for use in each.reads):
            continue
        if any(use.value not in made and num_elements(use.shape) > length for use in each.reads):
            return None  # what is masked is a matrix itself
        rows.append(i)
        if all(use.shape == shape for use in each.writes) and base_name(each) not in _BY_ROW:
            made |= {use.value for use in each.writes}
        elif base_name(each) in _REDUCES:
            is_reduced = True
        else:
            return None
    return OrderMask(graph.work(rows), length) if is_reduced else None
