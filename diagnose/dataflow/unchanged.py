"""Operators that change nothing: they normalize what is normalized, or return what they were given.

A factor or a divisor that is 1 everywhere and was computed of what it scales shows that this was normalized before. It
has to be so in each step. A parameter that is kept at a norm is another matter where gradients are taken: they would
leave that norm.

A sort of what is sorted, a gather of all rows in order and a resize to the same size return their argument. Guards,
such as a clamp, are none of these: they are there for numbers that the recorded steps did not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from diagnose.dataflow.graph import Graph, base_name, is_copy, is_pointwise, is_reduction, is_weight, reached
from diagnose.dataflow.repeats import MAX_SAMPLED_ZEROS
from diagnose.model.dataflow import Frame, Operator, Use
from diagnose.model.shapes import num_elements

__all__ = ["Unchanged", "unchanged"]

_SCALES = frozenset({"mul", "div"})
_SORTS = frozenset({"sort", "msort"})
_GATHERS = frozenset({"index", "index_select", "embedding", "gather", "roll", "flip"})
_RESIZES = ("upsample_", "_upsample_", "_adaptive_avg_pool", "adaptive_max_pool")  # prefixes


class Unchanged(NamedTuple):
    """One operator whose result is what another value is already."""

    operator: int
    value: int  # that is what it returns
    is_norm: bool


def unchanged(graph: Graph) -> Iterator[Unchanged]:
    """Yield the last step's operators that change nothing, with what they compute for it and their backward pass."""
    before: set[tuple[str, Frame | None, bool]] = set()
    for i, one in enumerate(graph.operators):
        if one.phase in ("backward", "optimizer") or not one.writes or one.is_view:
            continue
        rows, value = _normalizes(graph, i)
        is_norm = bool(rows)
        if not is_norm:
            value = _returned(graph, i)
            rows = [i] if value >= 0 else []
        if not rows:
            continue
        key = one.name, one.place, is_norm
        if one.step < graph.last_step:
            before.add(key)
        elif key in before:
            yield from (Unchanged(j, value, is_norm) for k in rows for j in (k, *graph.backward[k]))


def _normalizes(graph: Graph, i: int) -> tuple[list[int], int]:
    """Return what computes a factor of 1 and scales a value by it, and this value; nothing if it is no such factor."""
    one = graph.operators[i]
    if base_name(one) not in _SCALES or len(one.reads) != 2:
        return [], -1
    for scaled, factor in ((0, 1), (1, 0))[: 1 if base_name(one) == "div" else 2]:
        value, by = one.reads[scaled].value, one.reads[factor].value
        if graph.values[by].is_one and num_elements(graph.values[by].shape) < num_elements(one.writes[0].shape):
            rows = _computed_of(graph, value, by)
            is_free = not graph.backward[i] or not is_weight(graph, value)
            if rows and is_free and not graph.values[value].is_one and graph.values[value].kind == "":
                return _only_for(graph, rows, i), value
    return [], -1


def _computed_of(graph: Graph, value: int, factor: int) -> list[int]:
    """Return the operators that compute a factor of a value and nothing else, a reduction among them."""
    rows, left = list[int](), [factor]
    while left:
        made_by = graph.values[left.pop()].producer
        one = graph.operators[made_by] if made_by >= 0 else None
        if one is None or not (is_pointwise(one) or is_reduction(one) or is_copy(one)):
            return []
        rows.append(made_by)
        left += [v for v in graph.needs[made_by] if v != value and num_elements(graph.values[v].shape) > 1]
    reduces = any(is_reduction(graph.operators[j]) and value in reached(graph.needs[j], graph.made_of) for j in rows)
    return rows if reduces else []


def _only_for(graph: Graph, rows: list[int], i: int) -> list[int]:
    """Return an operator, and those of some others that only it and they need in the forward pass."""
    needed = {i}
    for j in sorted(set(rows), reverse=True):
        readers = (k for use in graph.operators[j].writes for k in graph.readers[use.value])
        if all(k in needed for k in readers if graph.operators[k].phase != "backward"):
            needed.add(j)
    return sorted(needed)


def _returned(graph: Graph, i: int) -> int:
    """Return the argument of a sort, a gather or a resize that its result equals, -1 if none."""
    one = graph.operators[i]
    name, made = base_name(one), graph.values[one.writes[0].value]
    if not (name in _SORTS or name in _GATHERS or name.startswith(_RESIZES)) or made.version:
        return -1
    if not made.fingerprint or made.kind or made.zeros > MAX_SAMPLED_ZEROS:
        return -1
    first = one.reads[0]
    is_same = graph.values[first.value].fingerprint == made.fingerprint and _is_plain(graph, one, first)
    return first.value if is_same else -1


def _is_plain(graph: Graph, one: Operator, use: Use) -> bool:
    """Return whether an operator sees a value as it was looked at, and returns one of that shape."""
    return use.shape == graph.values[use.value].shape == one.writes[0].shape and not use.offset
