"""Rows of embedding tables that a step does not look up, and that a dense gradient and its update write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diagnose.dataflow.graph import Graph, plain_name
from diagnose.model.shapes import num_elements

__all__ = ["untouched_rows"]

MIN_UNTOUCHED = 0.75  # of a table's rows: with fewer the dense form is as fast
_GRADIENTS = frozenset({"embedding_dense_backward", "_embedding_bag_backward", "_embedding_bag_dense_backward"})


def untouched_rows(graph: Graph, rows: Iterable[int]) -> Iterator[tuple[int, int, float]]:
    """Yield operators that fill or update whole tables, with the gradient and the part that rows without one take.

    What has the shape of a table in an optimizer is the table, its gradient or its state. A gradient that other uses of
    the table add to is not of these.
    """
    rows = list(rows)
    made = {i: use.value for i in rows for use in graph.operators[i].writes if _is_gradient(graph, i)}
    storages = {graph.values[value].storage for value in made.values()}
    updates = [i for i in rows if graph.operators[i].phase == "optimizer"]
    read = (use.value for i in updates for use in graph.operators[i].reads)
    tables = {graph.values[v].shape: v for v in read if _is_untouched(graph, v) and graph.values[v].storage in storages}
    for i, value in made.items():
        if graph.values[value].shape in tables and _is_untouched(graph, value):
            yield i, value, graph.values[value].zero_rows
    for i in updates:
        sizes = [(num_elements(use.shape), tables.get(use.shape, -1)) for use in graph.operators[i].reads]
        mine = [(size, value) for size, value in sizes if value >= 0]
        if mine:
            value = max(mine)[1]
            share = sum(size for size, _ in mine) / sum(size for size, _ in sizes)
            yield i, value, graph.values[value].zero_rows * share


def _is_gradient(graph: Graph, operator: int) -> bool:
    return plain_name(graph.operators[operator].name) in _GRADIENTS


def _is_untouched(graph: Graph, value: int) -> bool:
    return graph.values[value].zero_rows >= MIN_UNTOUCHED
