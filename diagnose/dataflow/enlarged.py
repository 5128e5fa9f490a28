"""Linear maps of enlarged inputs: what a gather, an expand or an interpolation enlarges could be multiplied before.

Taking, repeating and interpolating rows works on each column alone, a product with weights on each row alone: both
orders give the same. Sums between them and joined columns stay sums, of the products of the parts. Rows are all
dimensions but that of the columns: the last one for a product, the second one for a 1x1 convolution.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from diagnose.dataflow.graph import Graph, Work, base_name
from diagnose.dataflow.rows import mapped_rows
from diagnose.model.dataflow import Frame, Operator, Use
from diagnose.model.limits import MAJORITY
from diagnose.model.shapes import num_elements

__all__ = ["EnlargedInput", "enlarged_inputs"]

_SCALES, _SUMS = frozenset({"mul", "div"}), frozenset({"add", "sub"})
_LAYOUTS = frozenset({"clone", "contiguous", "_to_copy", "neg"})
_TAKES = frozenset({"index", "index_select", "embedding", "repeat"})


class EnlargedInput(NamedTuple):
    """A linear map whose input was made of fewer rows, and what makes that input."""

    work: Work
    map_line: Frame | None
    enlarging_line: Frame | None  # in a function that has both, if there is one
    is_interpolated: bool
    num_rows: int  # of the input of the longest call
    fewer: int  # such rows that have as many elements as all that it is made of
    avoidable: float  # share of the work's time
    modules: tuple[str, str] = ("", "")  # that multiply, and that make the input


class _Part(NamedTuple):
    """Columns of a value, and what makes them of fewer rows."""

    elements: int  # of what they are made of
    operators: tuple[int, ...] = ()  # linear ones in between
    enlarging: tuple[int, ...] = ()


class _Map(NamedTuple):
    """A call that multiplies rows by weights."""

    operator: int
    rows: Use
    axis: int  # of the columns
    width: int  # of the result
    part: _Part


_Parts = dict[tuple[int, int, int, int], _Part]  # by value, stride and number of the columns, and all elements


def enlarged_inputs(graph: Graph) -> tuple[EnlargedInput, ...]:
    """Return the last step's linear maps of what could be enlarged or joined afterwards, the longest first."""
    parts: _Parts = {}
    calls: dict[tuple[Frame | None, Frame | None], list[tuple[float, _Map]]] = defaultdict(list)
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if one.phase in ("backward", "optimizer") or len(one.writes) != 1 or len(one.writes[0].shape) < 2:
            continue
        result = one.writes[0]
        for axis in {1, len(result.shape) - 1}:
            made = _made(graph, parts, i, axis)
            if made is not None and made.elements < num_elements(result.shape):
                parts[_key(result, axis)] = made
        linear = _map(parts, i, one)
        if linear is not None and _may_be_first(graph, linear) and (saved := _saved(graph, linear)) > 0:
            enlarging = graph.operators[linear.part.enlarging[0]]
            calls[one.place, _line_before(enlarging, one)].append((saved, linear))
    found = []
    for (place, line), each in calls.items():
        rows = {j for _, linear in each for j in (linear.operator, *linear.part.operators)}
        work = graph.work([*rows, *(j for i in rows for j in graph.backward[i])])
        linear = max(each, key=lambda pair: pair[0])[1]
        record = EnlargedInput(
            work=work,
            map_line=place,
            enlarging_line=line,
            is_interpolated=any(_interpolates(graph.operators[j]) for j in linear.part.operators),
            num_rows=_num_rows(linear.rows, linear.axis),
            fewer=linear.part.elements // linear.rows.shape[linear.axis],
            avoidable=min(sum(saved for saved, _ in each) / max(graph.time(work.operators), 1), 1.0),
            modules=(
                graph.operators[linear.operator].module,
                graph.operators[(*linear.part.operators, *linear.part.enlarging)[0]].module,
            ),
        )
        found.append(record)
    return tuple(sorted(found, key=lambda one: -one.work.share * one.avoidable))


def _line_before(one: Operator, later: Operator) -> Frame | None:
    """Return the line that runs an operator in the innermost function that also runs a later one."""
    outer = zip(reversed(one.stack), reversed(later.stack), strict=False)
    return next((frame for frame, other in outer if frame != other), one.place)


def _map(parts: _Parts, i: int, one: Operator) -> _Map | None:
    linear = mapped_rows(one)
    if linear is None:
        return None
    rows, axis = linear
    return _Map(i, rows, axis, one.writes[0].shape[axis], _seen(parts, i, rows, axis))


def _may_be_first(graph: Graph, linear: _Map) -> bool:
    """Return whether an input is joined or interpolated of few rows; products of repeated ones are equal rows."""
    operators = [graph.operators[j] for j in linear.part.operators]
    narrowest = min((one.writes[0].shape[1] for one in operators if _interpolates(one)), default=linear.width)
    is_made = any(_interpolates(one) or _combines(one) for one in operators)
    is_small = linear.part.elements <= (1 - MAJORITY) * num_elements(linear.rows.shape)
    return is_made and is_small and linear.width <= narrowest


def _saved(graph: Graph, linear: _Map) -> float:
    """Return what the other order saves, ns: fewer rows are multiplied, and columns of the result are enlarged."""
    backward, part = graph.backward[linear.operator], linear.part
    needed = part.elements / num_elements(linear.rows.shape)
    saved = graph.time((linear.operator, *backward)) * (1 - needed)
    gone = {linear.operator}
    for i in sorted(part.operators, reverse=True):
        one = graph.operators[i]
        use = one.writes[0]
        readers = {j for j in graph.readers[use.value] if graph.operators[j].phase != "backward"}
        now = graph.time((i, *graph.backward[i]))
        if readers <= gone and not graph.lives_on[use.value]:
            gone.add(i)
            saved += now
        columns = num_elements(use.shape) / _num_rows(linear.rows, linear.axis)
        num_times = len(one.reads) - 1 if base_name(one) == "cat" else 1  # joined parts are added up instead
        new_backward = graph.time([i]) if backward and not graph.backward[i] else 0
        saved -= (now + new_backward) * num_times * linear.width / columns
    return saved


def _num_rows(use: Use, axis: int) -> int:
    return num_elements(use.shape) // max(use.shape[axis], 1)


def _key(use: Use, axis: int) -> tuple[int, int, int, int]:
    return use.value, use.stride[axis], use.shape[axis], num_elements(use.shape)


def _seen(parts: _Parts, i: int, use: Use, axis: int) -> _Part:
    """Return what the columns that an operator sees are made of; rows that a view repeats count once."""
    made = parts.get(_key(use, axis))
    if made is not None:
        return made
    elements = num_elements(size for size, step in zip(use.shape, use.stride, strict=True) if step)
    return _Part(elements, enlarging=(i,) if elements < num_elements(use.shape) else ())


def _made(graph: Graph, parts: _Parts, i: int, axis: int) -> _Part | None:
    """Return what a linear operator makes columns of, None for an operator that mixes them or is not linear."""
    one = graph.operators[i]
    sources = _sources(one, axis)
    if not sources or not all(use.stride[at] for use, at in sources):
        return None
    num_rows, found = _num_rows(one.writes[0], axis), list[_Part]()
    for use, at in sources:
        part = _seen(parts, i, use, at)
        is_known = bool(part.enlarging) or part.elements >= num_rows * use.shape[at]
        found.append(part if is_known else part._replace(enlarging=(i,)))
    # What makes rows of fewer comes before what also sums them up.
    enlarging = sorted((j for part in found for j in part.enlarging), key=lambda j: _combines(graph.operators[j]))
    return _Part(
        elements=sum(part.elements for part in found),
        operators=_distinct((i, *(j for part in found for j in part.operators))),
        enlarging=_distinct(enlarging),
    )


def _distinct(operators: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(operators))


def _sources(one: Operator, axis: int) -> list[tuple[Use, int]]:
    """Return the arguments that a linear operator takes columns of, with their dimension; none for any other one."""
    name, out, reads = base_name(one), one.writes[0], one.reads
    behind = len(out.shape) - axis  # dimensions from that of the columns on
    if name == "cat":
        others = {(use.shape[:axis], use.shape[axis + 1 :]) for use in (*reads, out)}
        is_by_column = len(others) == 1 and sum(use.shape[axis] for use in reads) == out.shape[axis]
        return [(use, axis) for use in reads] if is_by_column else []
    data: tuple[Use, ...]
    if name in _SUMS:
        data = reads if len(reads) == 2 else ()
    elif _interpolates(one):
        data = reads[:1] if axis == 1 else ()
    elif name in _LAYOUTS or (name in _SCALES and all(num_elements(use.shape) == 1 for use in reads[1:])):
        data = reads[:1]
    else:
        data = reads[:1] if name in _TAKES and behind == 1 and not _takes_columns(one) else ()
    found = [(use, len(use.shape) - behind) for use in data]
    is_of_columns = all(at >= 0 and use.shape[at] == out.shape[axis] for use, at in found)
    return found if is_of_columns else []


def _takes_columns(one: Operator) -> bool:
    """Return whether an index is one of the last dimension too."""
    last = len(one.reads[0].shape) - 1
    num_indices = len(one.reads) - 1 + one.attributes.count("None") if base_name(one) == "index" else 1
    return num_indices > last or re.search(rf"\bdim=(-1|{last})\b", one.attributes) is not None


def _combines(one: Operator) -> bool:
    return base_name(one) == "cat" or base_name(one) in _SUMS


def _interpolates(one: Operator) -> bool:
    return base_name(one).lstrip("_").startswith("upsample_")
