"""Costly forms: operators that compute far more than what is read of their results.

An entry of ``_FORMS`` is a question to one operator: its shapes and attributes, which of its results are read and how
much of them, and what its operands hold. The share that another form spares follows from counts of operations where
these are known, else from the least that was measured.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from math import log2
from typing import Literal, NamedTuple, TypeAlias

from diagnose.dataflow.graph import Graph, Work, base_name, is_product, plain_name
from diagnose.dataflow.structured import MIN_SIDE
from diagnose.model.dataflow import Frame, Operator, Use
from diagnose.model.factorisations import solve_operations, svd_operations
from diagnose.model.limits import FEW, MAJORITY
from diagnose.model.shapes import num_elements

__all__ = ["CostlyForm", "FormKind", "costly_forms"]

FormKind: TypeAlias = Literal[
    "values", "full factors", "eigenvalues", "same matrix", "triangular", "inverse", "separable", "pairs", "decay",
    "ranks", "few shuffled", "rows", "diagonal", "count", "long filter", "known factor", "normalised",
]  # fmt: skip


class CostlyForm(NamedTuple):
    """Operators of one line in a form that another one spares a part of."""

    kind: FormKind
    work: Work
    avoidable: float  # share of the work's time
    sizes: tuple[int, ...]  # what the sentence about it names


class _Found(NamedTuple):
    kind: FormKind
    operators: tuple[int, ...]
    avoidable: float
    sizes: tuple[int, ...]


def costly_forms(graph: Graph) -> tuple[CostlyForm, ...]:
    """Return the last step's operators in a costly form, by line, the longest first."""
    groups: dict[tuple[FormKind, Frame | None], list[_Found]] = defaultdict(list)
    for each in (*_single(graph), *_decays(graph), *_solves(graph)):
        groups[each.kind, graph.operators[each.operators[0]].place].append(each)
    found = []
    for (kind, _), ones in groups.items():
        most = max(ones, key=lambda one: graph.time(one.operators))
        avoidable = {i: one.avoidable for one in ones for i in one.operators}
        spared = sum(graph.time((i,)) * share for i, share in avoidable.items())
        work = graph.work(avoidable)
        found.append(CostlyForm(kind, work, spared / max(graph.time(work.operators), 1), most.sizes))
    return tuple(sorted(found, key=lambda one: -one.work.share * one.avoidable))


def _single(graph: Graph) -> Iterator[_Found]:
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        asked = _FORMS.get(base_name(one)) if one.phase not in ("backward", "optimizer") else None
        found = asked(graph, i, one) if asked is not None and one.writes and (one.reads or asked is _shuffle) else None
        if found is not None:
            yield found


def _uses(graph: Graph, use: Use) -> list[Use] | None:
    """Return how other operators see a result, None where it is not known which do."""
    if graph.lives_on[use.value]:
        return None
    return [each for i in graph.readers[use.value] for each in graph.operators[i].reads if each.value == use.value]


def _is_unread(graph: Graph, use: Use) -> bool:
    return _uses(graph, use) == []


def _with_backward(graph: Graph, *operators: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(j for i in operators for j in (i, *graph.backward[i])))


def _makes_vectors(one: Operator) -> bool:
    return len(one.writes) > 1 and num_elements(one.writes[-1].shape) > 0


def _svd(graph: Graph, i: int, one: Operator) -> _Found | None:
    shape = one.reads[0].shape[-2:]
    if len(shape) < 2 or not _makes_vectors(one):
        return None
    (long, short), left, right = (max(shape), min(shape)), one.writes[0], one.writes[2]
    is_full = "full_matrices=True" in one.attributes and long > short
    now = svd_operations(long, short, "full" if is_full else "thin")
    if _is_unread(graph, left) and _is_unread(graph, right):
        return _Found("values", (i,), 1 - svd_operations(long, short, "values") / now, shape)
    uses = _uses(graph, left if shape[0] == long else right)
    is_cut = uses is not None and all(min(use.shape[-2:]) <= short for use in uses)
    spared = 1 - svd_operations(long, short, "thin") / now
    return _Found("full factors", (i,), spared, shape) if is_full and is_cut and spared >= MAJORITY else None


def _eigen(graph: Graph, i: int, one: Operator) -> _Found | None:
    is_form = _makes_vectors(one) and one.reads[0].shape[-1] >= MIN_SIDE and _is_unread(graph, one.writes[1])
    return _Found("eigenvalues", (i,), 0.4, one.reads[0].shape[-2:]) if is_form else None  # as measured


def _qr(graph: Graph, i: int, one: Operator) -> _Found | None:
    long, short = one.reads[0].shape[-2:]
    uses = _uses(graph, one.writes[0])
    is_cut = uses is not None and all(use.shape[-1] <= short for use in uses)
    spared = 1 - short / long
    is_full = "complete" in one.attributes and spared >= MAJORITY
    return _Found("full factors", (i,), spared, (long, short)) if is_full and is_cut else None


def _inverse(graph: Graph, i: int, one: Operator) -> _Found | None:
    """Find an inverse that is only multiplied with fewer columns than it has."""
    side, readers = one.reads[0].shape[-1], [graph.operators[j] for j in graph.readers[one.writes[0].value]]
    products = [each for each in readers if each.phase != "backward"]
    widths = [each.writes[0].shape[-1] if len(each.writes[0].shape) > 1 else 1 for each in products if each.writes]
    is_few = len(products) == len(widths) == 1 and is_product(products[0]) and 2 * widths[0] <= side
    if not is_few or side < MIN_SIDE or graph.lives_on[one.writes[0].value]:
        return None
    return _Found("inverse", (i,), 2 / 3, (side, widths[0]))  # of 2 n^3 operations, the factors take a third


def _separable(graph: Graph, i: int, one: Operator) -> _Found | None:
    """Find a filter of each channel, the outer product of two vectors that no step changes."""
    if len(one.reads) < 2 or len(one.reads[1].shape) != 4 or one.reads[1].shape[1] != 1:
        return _long_filter(graph, i, one)
    kernel = graph.values[one.reads[1].value]
    height, width = one.reads[1].shape[2:]
    spared = 1 - 2 * (height + width) / (height * width)  # a thin filter does half as much per second
    is_fixed = kernel.role not in ("parameter", "input") and kernel.kind in ("outer", "constant")
    if not is_fixed or spared < MAJORITY or "transposed=True" in one.attributes:
        return _long_filter(graph, i, one)
    return _Found("separable", _with_backward(graph, i), spared, (height, width))


def _long_filter(graph: Graph, i: int, one: Operator) -> _Found | None:
    """Find a filter of each channel along one dimension, so long that transforms are faster."""
    shape = one.reads[1].shape[2:] if len(one.reads) > 1 else ()
    taps, length = max(shape, default=0), max(one.reads[0].shape[2:], default=0)
    is_single = len(shape) > 0 and one.reads[1].shape[1] == 1 and num_elements(shape) == taps <= length
    is_dense = re.search(r"stride=\((1, )*1,?\)", one.attributes) and re.search(
        r"dilation=\((1, )*1,?\)", one.attributes
    )
    # Three real transforms of 2.5 operations per element and doubling, at half of the speed of multiplying and adding.
    spared = 1 - 15 * log2(length + taps) / (2 * taps) if is_single and is_dense and taps > 1 else 0.0
    return _Found("long filter", _with_backward(graph, i), spared, (taps, length)) if spared >= MAJORITY else None


def _pairs(graph: Graph, i: int, one: Operator) -> _Found | None:
    """Find sums of |a - b| over all pairs of a set, which an order gives without the pairs."""
    made = one.writes[0]
    if len(one.reads) != 2 or one.reads[0].value != one.reads[1].value or len(made.shape) < 2:
        return None
    side, other = made.shape[-2:]
    first, second = (use.shape[-2:] for use in one.reads)
    is_paired = side == other >= MIN_SIDE and {first, second} == {(side, 1), (1, side)}
    if not is_paired or graph.lives_on[made.value]:
        return None
    rows, use = [i], made
    for wanted in ({"abs"}, {"sum", "mean"}):
        readers = [j for j in graph.readers[use.value] if graph.operators[j].phase != "backward"]
        if len(readers) != 1 or base_name(graph.operators[readers[0]]) not in wanted:
            return None
        rows.append(readers[0])
        use = graph.operators[readers[0]].writes[0]
    reduced = graph.operators[rows[-1]].reads[0].shape
    if num_elements(use.shape) * side * other > num_elements(reduced):  # one of the two stays
        return None
    return _Found("pairs", _with_backward(graph, *rows), 1 - 2 * log2(side) / side, (side,))


def _sort(graph: Graph, i: int, one: Operator) -> _Found | None:
    """Find a sort of the places that a sort has given; a scatter took a tenth of it."""
    before = graph.producer(one.reads[0].value)
    is_of_order = before is not None and base_name(before) == "sort" and len(before.writes) > 1
    if before is None or not is_of_order or before.writes[1].value != one.reads[0].value:
        return None
    return _Found("ranks", (i,), 0.8, (num_elements(one.writes[0].shape),))


def _shuffle(graph: Graph, i: int, one: Operator) -> _Found | None:
    size, uses = num_elements(one.writes[0].shape), _uses(graph, one.writes[0])
    most = max((num_elements(use.shape) for use in uses or ()), default=0)
    is_few = most > 0 and most <= FEW * size and len({use.offset for use in uses or ()}) == 1
    return _Found("few shuffled", (i,), 1 - most / size, (size, most)) if is_few else None


def _rows(_: Graph, i: int, one: Operator) -> _Found | None:
    """Find rows of integers that are compared; as one integer each, they took a fiftieth."""
    data = one.reads[0]
    is_integer = data.dtype.startswith(("int", "uint")) and len(data.shape) == 2 and "dim=0" in one.attributes
    return _Found("rows", (i,), 0.8, data.shape) if is_integer and data.shape[1] > 1 else None


def _diagonal(graph: Graph, i: int, one: Operator) -> _Found | None:
    """Find a product of matrices of which only the diagonal is read."""
    made = one.writes[0]
    side, other = (*made.shape, 0, 0)[-2:] if len(made.shape) < 2 else made.shape[-2:]
    readers = [j for j in graph.readers[made.value] if graph.operators[j].phase != "backward"]
    is_traced = [base_name(graph.operators[j]) == "trace" for j in readers]
    is_diagonal = [
        each or all(use.stride[-1:] == (other + 1,) and use.shape[-1:] == (min(side, other),)
                    for use in graph.operators[j].reads if use.value == made.value)
        for j, each in zip(readers, is_traced, strict=True)
    ]  # fmt: skip
    if min(side, other) < MIN_SIDE or not readers or not all(is_diagonal) or graph.lives_on[made.value]:
        return None
    return _Found("diagonal", _with_backward(graph, i), 1 - 1 / min(side, other), (side, other))


def _count(graph: Graph, i: int, one: Operator) -> _Found | None:
    """Find one-hot rows that are only added up."""
    use = one.reads[0]
    is_of_rows = len(use.shape) == 2 and one.writes[0].shape[-1:] == use.shape[-1:] and len(one.writes[0].shape) < 2
    if not is_of_rows or graph.values[use.value].kind != "one-hot":
        return None
    rows, value = [i], use.value
    while (made_by := graph.values[value].producer) >= 0 and graph.operators[made_by].step == one.step:
        if [j for j in graph.readers[value] if j not in rows]:
            return None
        rows.append(made_by)
        before = [v for v in graph.needs[made_by] if graph.values[v].shape == graph.values[value].shape]
        if len(before) != 1:
            break
        value = before[0]
    return _Found("count", tuple(rows), 1 - 1 / use.shape[1], use.shape)


def _known_factor(graph: Graph, i: int, one: Operator) -> _Found | None:
    """Find a matrix that was made of its triangular factor, times that transposed."""
    product = graph.values[one.reads[0].value].producer
    made = graph.operators[product] if product >= 0 else None
    if made is None or base_name(made) not in ("mm", "bmm", "matmul"):
        return None
    left, right = made.reads[:2]
    is_own = left.value == right.value and left.stride != right.stride
    if not is_own or graph.values[left.value].kind != "triangular":
        return None
    return _Found("known factor", _with_backward(graph, product, i), 1.0, one.reads[0].shape[-2:])


def _normalised(graph: Graph, i: int, one: Operator) -> _Found | None:
    """Find logarithms of probabilities that are normalised again, along the last dimension: nothing changes."""
    before = graph.producer(one.reads[0].value)
    if before is None or base_name(before) != base_name(one) or not (_is_by_row(before) and _is_by_row(one)):
        return None
    is_same = before.writes[0].shape[-1:] == one.reads[0].shape[-1:]
    return _Found("normalised", _with_backward(graph, i), 1.0, one.reads[0].shape[-1:]) if is_same else None


def _is_by_row(one: Operator) -> bool:
    dim = re.search(r"dim=(-?\d+)", one.attributes)
    return dim is not None and int(dim[1]) in (-1, len(one.reads[0].shape) - 1)


_Asked: TypeAlias = Callable[[Graph, int, Operator], _Found | None]

_FORMS: Mapping[str, _Asked] = {
    "linalg_cholesky_ex": _known_factor,
    "_log_softmax": _normalised,
    "_linalg_svd": _svd,
    "_linalg_eigh": _eigen,
    "linalg_eig": _eigen,
    "linalg_qr": _qr,
    "linalg_inv_ex": _inverse,
    "convolution": _separable,
    "sub": _pairs,
    "sort": _sort,
    "randperm": _shuffle,
    "unique_dim": _rows,
    "mm": _diagonal,
    "bmm": _diagonal,
    "addmm": _diagonal,
    "_cdist_forward": _diagonal,
    "sum": _count,
}


def _solves(graph: Graph) -> Iterator[_Found]:
    """Yield solutions with a triangular matrix, and with one that was factored before, in this step or the last."""
    factored: dict[object, int] = {}  # step, by the matrix
    for i, one in enumerate(graph.operators):
        if base_name(one) != "_linalg_solve_ex" or len(one.reads) < 2:
            continue
        matrix, result = graph.values[one.reads[0].value], one.writes[0]
        side, columns = one.reads[0].shape[-1], max(num_elements(result.shape) // max(one.reads[0].shape[-1], 1), 1)
        columns = max(columns * side**2 // max(num_elements(one.reads[0].shape), 1), 1)  # of each matrix
        key = matrix.fingerprint if matrix.is_exact else _derived(graph, one.reads[0].value)
        before = factored.setdefault(key, one.step)
        solved = solve_operations(side, columns, is_factored=True)
        spared = 1 - solved / solve_operations(side, columns, is_factored=False)
        if one.step < graph.last_step or side < MIN_SIDE:
            continue
        if matrix.kind == "triangular":
            yield _Found("triangular", (i,), spared, (side, columns))
        elif before < one.step or factored.get((key, "here")) == one.step:
            yield _Found("same matrix", (i,), spared, (side, columns))
        factored[key, "here"] = one.step


def _derived(graph: Graph, value: int, depth: int = 8) -> object:
    """Return what is equal for values that are computed alike of the same values."""
    made_by = graph.values[value].producer
    one = graph.operators[made_by] if made_by >= 0 else None
    if one is None or graph.values[value].version or one.draws or not graph.computes(made_by) or not depth:
        return value
    return one.name, one.attributes, *((_derived(graph, use.value, depth - 1), *use[1:]) for use in one.reads)


def _decays(graph: Graph) -> Iterator[_Found]:
    """Yield sums of squares of parameters that the backward pass goes through: what weight decay does."""
    rows = list[int]()
    squared, every = set[int](), set[int]()
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        read = {use.value for use in one.reads}
        every |= {value for value in read if graph.values[value].role == "parameter"}
        if _is_square(one) and len(read) == 1 and read <= every and graph.backward[i]:
            readers = [j for j in graph.readers[one.writes[0].value] if graph.operators[j].phase != "backward"]
            if len(readers) == 1 and base_name(graph.operators[readers[0]]) == "sum":
                squared |= read
                rows += [i, readers[0]]
    elements = [sum(num_elements(graph.values[v].shape) for v in values) for values in (squared, every)]
    if len(squared) > 1 and 2 * elements[0] >= elements[1]:
        work = _with_backward(graph, *rows)
        num = sum(not graph.operators[i].is_view for i in work) / len(squared)
        yield _Found("decay", work, 1 - 1 / max(num, 1.0), (len(squared), elements[0]))


def _is_square(one: Operator) -> bool:
    name = plain_name(one.name)
    is_power = name == "pow" and re.search(r"exponent=2(\.0)?\b", one.attributes) is not None
    is_product = name == "mul" and len(one.reads) == 2 and one.reads[0] == one.reads[1]
    return one.phase == "forward" and len(one.writes) == 1 and (is_power or name == "square" or is_product)
