"""Work on nothing: zeros, one-hot rows, padding, rows without a gradient, triangles, subnormals, what is not read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Literal, NamedTuple, TypeAlias

from diagnose.dataflow.graph import Graph, Work
from diagnose.dataflow.names import base_name, is_copy, is_pointwise, is_product, is_reduction
from diagnose.dataflow.unread import is_sort, unread_results
from diagnose.dataflow.untouched import untouched_rows
from diagnose.model.dataflow import Frame, Operator, Use
from diagnose.model.shapes import num_elements

__all__ = ["WorkOnNothing", "work_on_nothing"]

MIN_COLUMNS = 32  # of one-hot rows: a product with few columns costs no more than a lookup
MIN_SPARSE = 0.9  # zeros of a matrix: with more others, a sparse product takes as long as a dense one
MIN_PADDED = 0.1
MIN_ZERO_ROWS = 0.5
SORT_SAVED = 0.7  # of a sort, by the selection of a few from each row
MIN_SUBNORMAL = 0.01  # of the elements

_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros", "zero"})
_PUTS = frozenset({"index_put", "scatter", "scatter_add", "index_add"})

Kind: TypeAlias = Literal[
    "zeros",
    "one-hot",
    "sparse",
    "padding",
    "ignored rows",
    "triangle",
    "subnormal",
    "sorted",
    "unread",
    "untouched rows",
]


@dataclass(frozen=True, slots=True)
class WorkOnNothing:
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

    @property
    def avoidable_share(self) -> float:
        """Return the share of the step's operator time that can be avoided."""
        return self.work.share * self.avoidable


class _Part(NamedTuple):
    """One operator and the share of its time that goes to nothing, because of a content that it reads."""

    kind: Kind
    operator: int
    avoidable: float
    value: int
    extent: float


def work_on_nothing(graph: Graph) -> tuple[WorkOnNothing, ...]:
    """Return the last step's work on nothing, the longest first. An operator counts with its largest share."""
    largest: dict[int, _Part] = {}
    for part in _parts(graph):
        if part.avoidable > largest.get(part.operator, part._replace(avoidable=0.0)).avoidable:
            largest[part.operator] = part
    groups: dict[tuple[Kind, Frame | None], list[_Part]] = defaultdict(list)
    for part in largest.values():
        groups[part.kind, graph.made_at(part.value)].append(part)
    records = (_record(graph, kind, parts) for (kind, _), parts in groups.items())
    return tuple(sorted(records, key=lambda one: -one.avoidable_share))


def _parts(graph: Graph) -> Iterator[_Part]:
    rows = list(graph.of_step(graph.last_step))
    yield from _products(graph, rows, graph.read_before())
    yield from _padding(graph, rows)
    yield from _ignored_rows(graph, rows)
    yield from _triangles(graph, rows)
    yield from _subnormal(graph, rows)
    for i, value, unread in unread_results(graph, rows):
        sorts = is_sort(graph.operators[i])
        yield _Part("sorted" if sorts else "unread", i, SORT_SAVED if sorts else unread, value, unread)
    for i, value, untouched in untouched_rows(graph, rows):
        yield _Part("untouched rows", i, untouched, value, graph.values[value].zero_rows)


def _products(graph: Graph, rows: Iterable[int], seen_before: set[str]) -> Iterator[_Part]:
    """Yield products with one-hot rows, with zeros, and with a matrix that is sparse in each step alike."""
    for i in rows:
        one = graph.operators[i]
        for use in one.reads if is_product(one) else ():
            value = graph.values[use.value]
            if value.role == "parameter" or len(use.shape) < 2 or num_elements(use.shape) != num_elements(value.shape):
                continue
            if value.kind == "one-hot" and value.shape[-1] >= MIN_COLUMNS:
                saved = 1 - 1 / value.shape[-1]
                yield _Part("one-hot", i, saved, use.value, saved)
                yield from (_Part("one-hot", j, saved, use.value, saved) for j in _makers(graph, use.value))
            elif value.zeros == 1 and value.kind == "constant":
                yield _Part("zeros", i, 1.0, use.value, 1.0)
            elif value.zeros >= MIN_SPARSE and (makers := _scattered(graph, use.value)):
                yield from (_Part("sparse", j, value.zeros, use.value, value.zeros) for j in (i, *makers))
            elif value.zeros >= MIN_SPARSE and value.fingerprint in seen_before:
                yield _Part("sparse", i, value.zeros, use.value, value.zeros)


def _scattered(graph: Graph, value: int) -> list[int]:
    """Return the operators that put numbers into zeros by index and what scales these, () if a value is not so made."""
    makers = _makers(graph, value)
    names = [base_name(graph.operators[i]) for i in makers]
    is_put = bool(names) and names[-1] in _ZEROS and not _PUTS.isdisjoint(names)
    return makers if is_put and all(_hands_on(graph.operators[i]) for i in makers[:-1]) else []


def _makers(graph: Graph, value: int) -> list[int]:
    """Return the operators that write a value out, the last one first: a scatter into zeros, conversions, factors."""
    makers: list[int] = []
    while (i := graph.values[value].producer) >= 0 and graph.operators[i].step == graph.last_step:
        makers.append(i)
        before = [each for each in graph.needs[i] if graph.values[each].shape == graph.values[value].shape]
        if len(before) != 1 or not (graph.values[value].version or _hands_on(graph.operators[i])):
            break
        value = before[0]
    return makers


def _hands_on(one: Operator) -> bool:
    """Return whether a result has zeros where the tensor that it is made from has them, but for what is put in."""
    return is_copy(one) or base_name(one) in (*_PUTS, "mul", "div")


def _padding(graph: Graph, rows: Iterable[int]) -> Iterator[_Part]:
    """Yield what is computed of positions that are padding in all rows of a batch.

    A batch comes in, or operators of the step make it; what is computed of one, as a mask, is no other.
    """
    batches = {
        i: padded
        for i, value in enumerate(graph.values)
        if MIN_PADDED <= (padded := _padded(graph, i)) < 1
        if graph.comes_in(i) or (graph.born[i] == graph.last_step and graph.later[i] < 0)
    }
    rows, covered = list(rows), set[int]()
    for batch, padded in batches.items():
        if batch in covered:
            continue
        num, length = graph.values[batch].shape[:2]
        reached = {batch}
        for i in rows:
            one = graph.operators[i]
            uses = (*one.reads, *one.writes)
            is_like = any(use.shape[:1] == (num,) and length in use.shape for use in one.writes)  # a mask of dropout
            if reached.isdisjoint(graph.needs[i]) and not (is_like and one.draws):
                continue
            sizes = max((_positions(use, num, length) for use in uses), default=0)
            if sizes:
                reached.update(use.value for use in one.writes)
                covered |= reached
                yield _Part("padding", i, 1 - (1 - padded) ** sizes, batch, padded)


def _padded(graph: Graph, value: int) -> float:
    """Return the share of a batch's positions that are padding; of rows of one length if other steps differ."""
    one = graph.values[value]
    if "float" in one.dtype:
        return {2: one.padded, 3: one.padded_rows}.get(len(one.shape), -1.0)
    if "int" not in one.dtype or len(one.shape) != 2:
        return -1.0
    if one.padded or one.evenly_padded < MIN_PADDED:
        return one.padded
    like = {
        max(other.padded, other.evenly_padded)
        for i, other in enumerate(graph.values)
        if graph.comes_in(i) == graph.comes_in(value) and graph.made_at(i) == graph.made_at(value)
        if (other.shape, other.dtype) == (one.shape, one.dtype)
    }
    return one.evenly_padded if len(like) > 1 else 0.0


def _positions(use: Use, num: int, length: int) -> int:
    """Return how many dimensions of a tensor are the positions of a batch: two in attention, one or none."""
    return min(use.shape.count(length), 2) or int(num * length in use.shape)


def _ignored_rows(graph: Graph, rows: Iterable[int]) -> Iterator[_Part]:
    """Yield operators of the backward pass with gradients that are zero in most rows, and those of the forward.

    The rows of a forward operator's result have an effect all the same if something reads it that has no gradient.
    """
    for i in rows:
        one = graph.operators[i]
        if one.phase != "backward" or not (is_product(one) or is_pointwise(one) or is_reduction(one)):
            continue
        for use in one.reads:
            share = graph.values[use.value].zero_rows
            if share >= MIN_ZERO_ROWS:
                yield _Part("ignored rows", i, share, use.value, share)
                if _is_only_for_gradients(graph, one.forward):
                    yield _Part("ignored rows", one.forward, share, use.value, share)


def _is_only_for_gradients(graph: Graph, i: int) -> bool:
    if i < 0 or graph.operators[i].step != graph.last_step:
        return False
    readers = {j for use in graph.operators[i].writes for j in graph.readers[use.value]}
    return all(graph.operators[j].phase == "backward" or graph.backward[j] for j in readers)


def _triangles(graph: Graph, rows: Iterable[int]) -> Iterator[_Part]:
    """Yield the operators of an attention whose scores a triangle hides: half of each is for nothing."""
    rows = list(rows)
    for i in rows:
        for use in graph.operators[i].reads:
            value = graph.values[use.value]
            if value.kind != "triangular" or value.role == "parameter" or not _hides(graph, i, use):
                continue
            reached = {use.value for use in graph.operators[i].writes} | set(graph.needs[i])
            side = use.shape[-2:]
            for j in rows:
                one = graph.operators[j]
                touched = {each.value for each in (*one.reads, *one.writes)}
                is_near = not touched.isdisjoint(reached) and one.phase != "optimizer"
                if j == i or (is_near and _has_side(one, side)):
                    reached.update(each.value for each in one.writes if each.shape[-2:] == side)
                    yield _Part("triangle", j, 0.5, use.value, 0.5)


def _hides(graph: Graph, i: int, mask: Use) -> bool:
    """Return whether an operator applies a mask to scores of its size."""
    one = graph.operators[i]
    others = [use for use in one.reads if use.value != mask.value and use.shape[-2:] == mask.shape[-2:]]
    return "attention" in one.name or (one.phase == "forward" and is_pointwise(one) and bool(others))


def _has_side(one: Operator, side: tuple[int, ...]) -> bool:
    return any(use.shape[-2:] == side and len(use.shape) > 2 for use in (*one.reads, *one.writes))


def _subnormal(graph: Graph, rows: Iterable[int]) -> Iterator[_Part]:
    """Yield operators that compute with subnormal numbers on a CPU, and what they take beyond those of normal ones.

    The speed of operators of the same kind, as large or larger, is what they are compared with.
    """
    speeds: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    slow: list[tuple[int, int]] = []
    inside = set(rows)
    for i, one in enumerate(graph.operators):
        if not one.writes or not (is_product(one) or is_pointwise(one) or is_reduction(one)):
            continue
        uses = (*one.reads, *one.writes)  # a single number slows no operator
        values = (u.value for u in uses if graph.values[u.value].device == "cpu" and graph.values[u.value].shape)
        subnormal = next((v for v in values if graph.values[v].subnormal > MIN_SUBNORMAL), -1)
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
    batch = one.writes[0].shape[0] if len(one.writes[0].shape) > 2 else 1
    product = 1.0
    for size in sizes[:3]:
        product *= size
    return max(sqrt(product / max(batch, 1)), 1.0)


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
        is_certain=value.is_exact or kind in ("one-hot", "padding", "triangle", "sorted", "unread"),
    )
