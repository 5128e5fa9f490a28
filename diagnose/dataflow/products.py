"""The order of a product and of what only combines rows: which of both works on the narrower rows.

Gathering, scaling, adding up and multiplying rows from the left (A) work on each column alone, a product with weights
from the right (W) on each row alone: (A X) W is A (X W). What A costs grows with the columns that it sees, so A comes
after a product that makes rows narrower, and before one that makes them wider. Of three matrices this is the order in
which a chain of products is cheapest.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple

from diagnose.dataflow.graph import Graph, Work, base_name
from diagnose.model.dataflow import Frame, Operator, Use
from diagnose.model.shapes import num_elements

__all__ = ["ProductOrder", "product_order"]

_PRODUCTS = {"mm": 0, "bmm": 0, "matmul": 0, "linear": 0, "mv": 0, "addmm": 1}  # which argument has the rows
_SELECTS, _ADDS = frozenset({"index", "index_select"}), frozenset({"index_add", "scatter_add"})
_FROM_LEFT = frozenset({"mm", "bmm", "matmul", "_sparse_mm"})
_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros", "zero"})


class ProductOrder(NamedTuple):
    """Operators that combine rows on one side of a product, and would work on fewer columns on the other."""

    work: Work
    avoidable: float  # share of the work's time
    columns: int  # of the widest rows
    fewer: int  # of the same rows on the other side
    is_first: bool  # the product is to come first; it comes first now if not
    is_always: bool  # no other call of these lines becomes longer
    has_bias: bool  # the product adds one
    row_stacks: tuple[tuple[Frame, ...], ...]  # of the operators of one such call, in order
    product_stack: tuple[Frame, ...]
    module: str  # that multiplies


class _Chain(NamedTuple):
    """Operators that combine rows, in order, and the rows before them, those after them, and the product."""

    operators: tuple[int, ...]
    product: int
    before: Use
    after: Use
    columns: int
    fewer: int


def product_order(graph: Graph) -> tuple[ProductOrder, ...]:
    """Return where a product is on the wrong side of what combines rows, the longest first."""
    chains = [one for i in graph.of_step(graph.last_step) for one in _chains(graph, i)]
    lines: dict[tuple[object, ...], list[tuple[float, _Chain]]] = defaultdict(list)
    for one in chains:
        is_first = one.operators[0] < one.product
        places = tuple(graph.operators[i].place for i in (*one.operators, one.product))
        lines[places, is_first].append((_saved(graph, one), one))
    found = []
    for each in lines.values():
        saved, most = sum(ns for ns, _ in each), max(each, key=lambda pair: pair[0])[1]
        rows = [i for ns, one in each if ns > 0 for i in (*one.operators, *_backward(graph, one.operators))]
        if saved > 0:
            product, work = graph.operators[most.product], graph.work(rows)
            record = ProductOrder(
                work=work,
                avoidable=min(saved / max(graph.time(work.operators), 1), 1.0),
                columns=most.columns,
                fewer=most.fewer,
                is_first=most.operators[0] < most.product,
                is_always=all(ns >= 0 for ns, _ in each),
                has_bias=base_name(product) == "addmm" or len(product.reads) > 2,
                row_stacks=tuple(graph.operators[i].stack for i in most.operators),
                product_stack=product.stack,
                module=product.module,
            )
            found.append(record)
    return tuple(sorted(found, key=lambda one: -one.work.share * one.avoidable))


def _chains(graph: Graph, i: int) -> list[_Chain]:
    """Return what combines rows right before and right after an operator, if that is a product."""
    one = graph.operators[i]
    at = _PRODUCTS.get(base_name(one))
    if at is None or one.phase == "backward" or len(one.reads) < at + 2 or len(one.writes) != 1:
        return []
    rows, weights, result = one.reads[at], one.reads[at + 1], one.writes[0]
    found, before, after, use = list[_Chain](), list[int](), list[int](), rows
    while (
        _only_reader(graph, use) >= 0 and (made := _combined(graph, graph.values[use.value].producer, use)) is not None
    ):
        before.insert(0, graph.values[use.value].producer)
        use = made
    columns = result.shape[-1] if len(weights.shape) > 1 else 1
    if before and graph.values[weights.value].producer < before[0]:
        found.append(_Chain(tuple(before), i, use, rows, rows.shape[-1], columns))
    use = result
    while (
        at == 0 and len(weights.shape) > 1 and len(one.reads) == 2 and (reader := _only_reader(graph, use)) >= 0
    ):  # a bias would be combined too
        now = next(iter(graph.operators[reader].writes), None)
        data = _combined(graph, reader, now) if now is not None else None
        if now is None or data is None or data.value != use.value or data.shape[-1] != result.shape[-1]:
            break
        after.append(reader)
        use = now
    if after:
        found.append(_Chain(tuple(after), i, result, use, result.shape[-1], rows.shape[-1]))
    return found


def _combined(graph: Graph, i: int, use: Use) -> Use | None:
    """Return the rows that an operator combines into those of a use, each column by itself; None for any other one."""
    one = graph.operators[i] if i >= 0 else None
    if one is None or one.is_view or one.step != graph.last_step or len(one.writes) != 1 or len(one.reads) < 2:
        return None
    data = _rows_of(graph, one)
    each = (use, one.writes[0]) if data is None else (use, one.writes[0], data)
    rows = each[:2] if base_name(one) in _FROM_LEFT else each  # what is multiplied from the left may be transposed
    is_by_column = len({use.shape[-1:] for use in each}) == 1 and all(use.stride[-1:] == (1,) for use in rows)
    return data if is_by_column else None


def _rows_of(graph: Graph, one: Operator) -> Use | None:
    name, out, first = base_name(one), one.writes[0], one.reads[0]
    if name in _SELECTS:
        whole = (*one.reads[1].shape, *first.shape[1:])
        is_of_rows = (
            len(one.reads) == 2 and len(first.shape) > 1 and out.shape == whole and "None" not in one.attributes
        )
        return first if is_of_rows and one.reads[1].dtype != first.dtype else None
    if name == "mul" and len(one.reads) == 2:
        data, other = sorted(one.reads, key=lambda use: -num_elements(use.shape))
        is_by_row = data.shape == out.shape and (not other.shape or other.shape[-1] == 1)
        return data if is_by_row and out.shape[-1] > 1 else None
    if name in _ADDS and len(one.reads) == 3 and _is_dim(one, 0):
        index, source = one.reads[1:]
        made_by = graph.producer(first.value)
        is_by_row = name == "index_add" or (index.shape == source.shape and index.stride[-1] == 0)
        return source if is_by_row and made_by is not None and base_name(made_by) in _ZEROS else None
    return one.reads[1] if name in _FROM_LEFT and len(one.reads) == 2 else None


def _is_dim(one: Operator, dim: int) -> bool:
    found = re.search(r"\bdim=(-?\d+)", one.attributes)
    return found is not None and int(found[1]) == dim


def _only_reader(graph: Graph, use: Use) -> int:
    """Return the only operator that reads a value before the backward pass, -1 if it is none or several."""
    readers = [i for i in graph.readers[use.value] if graph.operators[i].phase != "backward"]
    return readers[0] if len(readers) == 1 and not graph.lives_on[use.value] else -1


def _backward(graph: Graph, operators: tuple[int, ...]) -> list[int]:
    return [j for i in operators for j in graph.backward[i]]


def _saved(graph: Graph, one: _Chain) -> float:
    """Return what the other order saves, ns: rows are combined in fewer columns, and others are multiplied."""
    share = one.fewer / one.columns
    back = _backward(graph, one.operators)
    forward_ns, back_ns = graph.time(one.operators), graph.time(back)
    multiplied = (one.product, *graph.backward[one.product])
    num_before, num_after = (num_elements(use.shape) / use.shape[-1] for use in (one.before, one.after))
    is_first = one.operators[0] < one.product
    growth = (num_before / num_after if is_first else num_after / num_before) - 1
    new_back_ns = forward_ns * share if is_first and not back and graph.backward[one.product] else 0.0
    return (forward_ns + back_ns) * (1 - share) - new_back_ns - growth * graph.time(multiplied)
