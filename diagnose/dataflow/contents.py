"""Work on nothing: zeros, one-hot rows, padding, rows without a gradient, triangles, subnormals, what is not read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from math import sqrt
from typing import Literal, NamedTuple, TypeAlias

from diagnose.dataflow.graph import (
    Graph,
    Work,
    base_name,
    is_arithmetic,
    is_copy,
    is_pointwise,
    is_product,
    is_weight,
    plain_name,
)
from diagnose.dataflow.ignored import ignored_rows
from diagnose.dataflow.masked import masked_rows
from diagnose.dataflow.searched import searches
from diagnose.dataflow.structured import structured_zeros
from diagnose.dataflow.unchanged import unchanged
from diagnose.dataflow.unread import unread_results
from diagnose.model.dataflow import Frame, Operator
from diagnose.model.shapes import num_elements

__all__ = ["WorkOnNothing", "untouched_rows", "work_on_nothing"]

MIN_COLUMNS = 32  # of one-hot rows: a product with few columns costs no more than a lookup
MIN_SPARSE = 0.9  # zeros of a matrix: with more others, a sparse product takes as long as a dense one
MIN_UNTOUCHED = 0.75  # of a table's rows: with fewer the dense form is as fast

_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros", "zero"})
_PUTS = frozenset({"index_put", "scatter", "scatter_add", "index_add"})
_LOOKUPS_BACKWARD = frozenset({"embedding_dense_backward", "_embedding_bag_backward", "_embedding_bag_dense_backward"})

Kind: TypeAlias = Literal[
    "zeros",
    "one-hot",
    "sparse",
    "blocks",
    "diagonal",
    "padding",
    "ignored rows",
    "masked rows",
    "triangle",
    "subnormal",
    "sorted",
    "unread",
    "untouched rows",
    "normalized",
    "returned",
    "searched",
]

_ROWS: tuple[Kind, ...] = ("masked rows", "ignored rows")
# Where an operator is both, the latter say more: where the zeros are, or why rows are not read.
_SAYS_MORE: dict[Kind, tuple[Kind, ...]] = {"sparse": ("blocks", "diagonal"), "unread": _ROWS}


class WorkOnNothing(NamedTuple):
    """Operators of which the contents that they read make a part needless."""

    kind: Kind
    work: Work
    avoidable: float  # share of the work's time
    value_line: Frame | None  # that made the content
    use_line: Frame | None  # that works on it
    shape: tuple[int, ...]  # of the content; of a padded batch its rows and positions
    dtype: str  # of the content
    extent: float  # share of elements, rows or positions that are nothing
    is_certain: bool


class _Part(NamedTuple):
    """One operator and the share of its time that goes to nothing, because of a content that it reads."""

    kind: Kind
    operator: int
    avoidable: float
    value: int
    extent: float


def work_on_nothing(graph: Graph) -> tuple[WorkOnNothing, ...]:
    """Return the last step's work on nothing, the longest first. An operator counts with its largest share.

    Of rows without an effect those count that are not padding: these are cut off for all operators. Those that a mask
    leaves out are the mask's.
    """
    rows, largest = list(graph.of_step(graph.last_step)), dict[int, _Part]()
    without_effect = zip(_ROWS, (masked_rows(graph, rows), ignored_rows(graph, rows)), strict=True)
    for part in chain(
        (_Part(one.kind, one.operator, one.share, one.value, one.share) for one in structured_zeros(graph)),
        _products(graph, rows, graph.read_before()),
        _padding(graph, rows),
        (_Part(kind, one.operator, one.share, one.value, one.share) for kind, each in without_effect for one in each),
        _triangles(graph, rows),
        _subnormal(graph, rows),
        (_Part("searched", one.operator, one.left, one.value, one.left) for one in searches(graph, rows)),
        (
            _Part("sorted" if one.is_sort else "unread", one.operator, one.avoidable, one.value, one.unread)
            for one in unread_results(graph, rows)
        ),
        untouched_rows(graph, rows),
        (
            _Part("normalized" if one.is_norm else "returned", one.operator, 1.0, one.value, 1.0)
            for one in unchanged(graph)
        ),
    ):
        known = largest.get(part.operator, part._replace(avoidable=0.0))
        if known.kind in _SAYS_MORE.get(part.kind, ()) and known.avoidable:
            continue
        beside = known.avoidable if known.kind in ("padding", "masked rows") and part.kind in _ROWS else 0.0
        if part.avoidable - beside > known.avoidable:
            largest[part.operator] = part
    groups: dict[tuple[Kind, Frame | None], list[_Part]] = defaultdict(list)
    for part in largest.values():
        groups[part.kind, graph.made_at(part.value)].append(part)
    records = (_record(graph, kind, parts) for (kind, _), parts in groups.items())
    return tuple(sorted(records, key=lambda one: -one.work.share * one.avoidable))


def _products(graph: Graph, rows: Iterable[int], seen_before: set[str]) -> Iterator[_Part]:
    """Yield products with one-hot rows, with zeros, and with a matrix that is sparse in each step alike."""
    read = ((i, use) for i in rows if is_product(graph.operators[i]) for use in graph.operators[i].reads)
    for i, use in read:
        value = graph.values[use.value]
        if value.role == "parameter" or len(use.shape) < 2 or num_elements(use.shape) != num_elements(value.shape):
            continue
        makers = _makers(graph, use.value)
        is_scattered = not _ZEROS.isdisjoint(base_name(graph.operators[j]) for j in makers[-1:])
        if value.kind == "one-hot" and value.shape[-1] >= MIN_COLUMNS:
            saved = 1 - 1 / value.shape[-1]
            yield from (_Part("one-hot", j, saved, use.value, saved) for j in (i, *makers))
        elif value.zeros == 1 and value.kind == "constant":
            yield _Part("zeros", i, 1.0, use.value, 1.0)
        elif value.zeros >= MIN_SPARSE and (is_scattered or value.fingerprint in seen_before):
            needless = (i, *makers) if is_scattered else (i,)
            yield from (_Part("sparse", j, value.zeros, use.value, value.zeros) for j in needless)


def _makers(graph: Graph, value: int) -> list[int]:
    """Return the operators that write a value out, the last one first: a scatter into zeros, conversions, factors."""
    makers: list[int] = []
    while (i := graph.values[value].producer) >= 0 and graph.operators[i].step == graph.last_step:
        makers.append(i)
        before = [each for each in graph.needs[i] if graph.values[each].shape == graph.values[value].shape]
        one = graph.operators[i]
        keeps_zeros = graph.values[value].version or is_copy(one) or base_name(one) in (*_PUTS, "mul", "div")
        if len(before) != 1 or not keeps_zeros:
            break
        value = before[0]
    return makers


def _padding(graph: Graph, rows: Iterable[int]) -> Iterator[_Part]:
    """Yield what is computed of positions that are padding in all rows of a batch.

    A batch comes in, or operators of the step make it; what is computed of one, as a mask, is no other. The targets of
    a loss are none: the positions that they leave out go through no layer.
    """
    batches = {
        i: padded
        for i, value in enumerate(graph.values)
        if 0 < (padded := _padded(graph, i)) < 1
        if graph.comes_in(i) or (graph.born[i] == graph.last_step and graph.later[i] < 0)
    }
    rows, covered = list(rows), set[int]()
    for batch, padded in batches.items():
        if batch in covered:
            continue
        num, length = graph.values[batch].shape[:2]
        reached, parts, meets_weights = {batch}, list[_Part](), False
        for i in rows:
            one = graph.operators[i]
            uses = (*one.reads, *one.writes)
            is_like = any(use.shape[:1] == (num,) and length in use.shape for use in one.writes)  # a mask of dropout
            is_reached = not reached.isdisjoint(graph.needs[i])
            # Of how many dimensions the positions are: two in attention, one or none.
            sizes = max((min(use.shape.count(length), 2) or int(num * length in use.shape) for use in uses), default=0)
            if not sizes or not (is_reached or (is_like and one.draws)):
                continue
            parts.append(_Part("padding", i, 1 - (1 - padded) ** sizes, batch, padded))
            if is_reached:
                reached.update(use.value for use in one.writes)
                is_forward = one.phase not in ("backward", "optimizer")
                meets_weights = meets_weights or (is_forward and any(is_weight(graph, use.value) for use in one.reads))
        covered |= reached
        yield from parts if meets_weights else ()


def _padded(graph: Graph, value: int) -> float:
    """Return the share of a batch's positions that are padding; of rows of one length if other steps differ."""
    one = graph.values[value]
    if "float" in one.dtype:
        return {2: one.padded, 3: one.padded_rows}.get(len(one.shape), -1.0)
    if "int" not in one.dtype or len(one.shape) != 2:
        return -1.0
    if one.padded or one.evenly_padded <= 0:
        return one.padded
    alike = [each for each in graph.values if (each.shape, each.dtype, each.role) == (one.shape, one.dtype, one.role)]
    return one.evenly_padded * (len({max(each.padded, each.evenly_padded) for each in alike}) > 1)


def _triangles(graph: Graph, rows: Iterable[int]) -> Iterator[_Part]:
    """Yield the operators of an attention whose scores a triangle hides: half of each is for nothing."""
    rows = list(rows)
    read = ((i, use) for i in rows for use in graph.operators[i].reads)
    for i, mask in read:
        one = graph.operators[i]
        hides = "attention" in one.name or (one.phase == "forward" and is_pointwise(one))
        if graph.values[mask.value].kind != "triangular" or not hides:
            continue
        side = mask.shape[-2:]
        reached = {use.value for use in graph.operators[i].writes} | set(graph.needs[i])
        for j in rows:
            uses = (*graph.operators[j].reads, *graph.operators[j].writes)
            has_side = any(use.shape[-2:] == side and len(use.shape) > 2 for use in uses)
            is_near = not reached.isdisjoint(use.value for use in uses)
            if j == i or (is_near and has_side):
                reached.update(each.value for each in graph.operators[j].writes if each.shape[-2:] == side)
                yield _Part("triangle", j, 0.5, mask.value, 0.5)


def _subnormal(graph: Graph, rows: Iterable[int]) -> Iterator[_Part]:
    """Yield operators that compute with subnormal numbers on a CPU, and what they take beyond those of normal ones.

    The speed of operators of the same kind, as large or larger, is what they are compared with.
    """
    speeds: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    slow: list[tuple[int, int]] = []
    inside = set(rows)
    for i, one in enumerate(graph.operators):
        if not one.writes or not is_arithmetic(one):
            continue
        uses = (*one.reads, *one.writes)  # a single number slows no operator
        values = (u.value for u in uses if graph.values[u.value].device == "cpu" and graph.values[u.value].shape)
        subnormal = next((v for v in values if graph.values[v].subnormal > 0), -1)
        if subnormal < 0:
            size = _size(one)
            speeds[is_product(one)].append((size, one.host_ns / size))
        elif i in inside:
            slow.append((i, subnormal))
    for i, value in slow:
        one, size = graph.operators[i], _size(graph.operators[i])
        like = sorted(speed for other, speed in speeds[is_product(one)] if 4 * other >= size)
        if like and (usual := size * like[len(like) // 2]) < one.host_ns:
            yield _Part("subnormal", i, 1 - usual / one.host_ns, value, graph.values[value].subnormal)


def _size(one: Operator) -> float:
    """Return how much an operator has to do: multiplications of a product, elements that others read and write."""
    sizes = sorted((num_elements(use.shape) for use in (*one.reads, *one.writes)), reverse=True)
    if not is_product(one):
        return max(float(sum(sizes)), 1.0)
    batch = num_elements(one.writes[0].shape[:-2][:1])
    return max(sqrt(num_elements(sizes[:3]) / max(batch, 1)), 1.0)


def untouched_rows(graph: Graph, rows: list[int]) -> Iterator[_Part]:
    """Yield operators that fill or update whole embedding tables, by the rows that the step does not look up.

    What has the shape of a table in an optimizer is the table, its gradient or its state. A gradient that other uses of
    the table add to is not of these.
    """
    fills = [i for i in rows if plain_name(graph.operators[i].name) in _LOOKUPS_BACKWARD]
    made = {i: use.value for i in fills for use in graph.operators[i].writes}
    storages = {graph.values[value].storage for value in made.values()}
    updates = [i for i in rows if graph.operators[i].phase == "optimizer"]
    read = ((use.value, graph.values[use.value]) for i in updates for use in graph.operators[i].reads)
    tables = {one.shape: v for v, one in read if one.zero_rows >= MIN_UNTOUCHED and one.storage in storages}
    for i, value in made.items():
        if graph.values[value].shape in tables:
            share = graph.values[value].zero_rows
            yield _Part("untouched rows", i, share, value, share)
    for i in updates:
        sizes = [(num_elements(use.shape), tables.get(use.shape, -1)) for use in graph.operators[i].reads]
        mine = [(size, value) for size, value in sizes if value >= 0]
        if mine:
            value = max(mine)[1]
            share = graph.values[value].zero_rows
            part = sum(size for size, _ in mine) / sum(size for size, _ in sizes)
            yield _Part("untouched rows", i, share * part, value, share)


def _record(graph: Graph, kind: Kind, parts: list[_Part]) -> WorkOnNothing:
    work = graph.work(part.operator for part in parts)
    time = max(graph.time(work.operators), 1)
    saved = sum(graph.operators[part.operator].host_ns * part.avoidable for part in parts)
    main = max(parts, key=lambda part: graph.operators[part.operator].host_ns)
    value = graph.values[main.value]
    return WorkOnNothing(
        kind=kind,
        work=work,
        avoidable=saved / time,
        value_line=graph.made_at(main.value),
        use_line=graph.operators[main.operator].place,
        shape=value.shape[:2] if kind == "padding" else value.shape,
        dtype=value.dtype,
        extent=main.extent,
        is_certain=value.is_exact
        or kind
        in ("one-hot", "blocks", "diagonal", "padding", "triangle", "sorted", "unread", "normalized", "searched"),
    )
