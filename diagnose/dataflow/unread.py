"""Results of which most is not read: what a slice of a product leaves out, or of rows that were sorted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diagnose.dataflow.graph import Graph
from diagnose.dataflow.names import base_name, is_pointwise, is_product
from diagnose.model.dataflow import Operator, Use
from diagnose.model.shapes import num_elements

__all__ = ["is_sort", "unread_results"]

MAX_READ = 0.5  # of a result's elements: of more a slice before the operator saves little


def unread_results(graph: Graph, rows: Iterable[int]) -> Iterator[tuple[int, int, float]]:
    """Yield products, pointwise operators and sorts with a result and its part that nothing reads, where that is most.

    A result that is not read at all is dead work. What a pointwise operator makes in vain it reads in vain as well.
    """
    read: dict[int, float] = {}  # of what an operator makes, the part that is needed
    for i in sorted(rows, reverse=True):
        one = graph.operators[i]
        if not graph.computes(i) or not (is_product(one) or is_pointwise(one) or is_sort(one)):
            continue
        shares = {use.value: _share_read(graph, use.value, read) for use in one.writes}
        value = max(shares, key=lambda each: shares[each])
        read[i] = shares[value]
        if 0 < shares[value] <= MAX_READ:
            yield i, value, 1 - shares[value]


def is_sort(one: Operator) -> bool:
    """Return whether an operator sorts."""
    return base_name(one) in ("sort", "argsort", "msort")


def _share_read(graph: Graph, value: int, read: dict[int, float]) -> float:
    if graph.lives_on[value] or graph.later[value] >= 0:
        return 1.0
    parts: dict[tuple[object, ...], float] = {}
    # A function of the backward pass has gradients of zero where the result is not read.
    for i in set(graph.readers[value]).difference(graph.backward[graph.values[value].producer]):
        one = graph.operators[i]
        needed = read.get(i, 1.0) if is_pointwise(one) else 1.0
        for use in one.reads:
            if use.value == value:
                part = (use.offset, use.shape, use.stride)
                parts[part] = max(parts.get(part, 0.0), _num_seen(use) * needed)
    return min(sum(parts.values()) / max(num_elements(graph.values[value].shape), 1), 1.0)


def _num_seen(use: Use) -> int:
    """Return how many elements a view shows; an expanded side shows one."""
    return num_elements(tuple(size for size, step in zip(use.shape, use.stride, strict=True) if step))
