"""Width: float64 between narrower ends, and float32 with products between 16-bit ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from diagnose.dataflow.graph import Graph, Work, components
from diagnose.dataflow.names import base_name, is_copy, is_product
from diagnose.model.dataflow import Frame, Operator

__all__ = ["TooWide", "narrows_inputs", "too_wide"]

_WIDE = frozenset({"float64", "double", "complex128"})
_JOINS = frozenset({"stack", "cat"})
_HALF = frozenset({"bfloat16", "float16", "half"})
_STATE = frozenset({"parameter", "buffer", "optimizer state", "state"})


@dataclass(frozen=True, slots=True)
class TooWide:
    """Operators that compute in a wider type than what goes in and what comes out."""

    kind: Literal["float64", "float32"]
    work: Work
    value_line: Frame | None  # where the wide values come to be
    use_line: Frame | None  # where they become narrow
    is_certain: bool  # False if something wide comes in or lives on: a type that was chosen


def too_wide(graph: Graph) -> tuple[TooWide, ...]:
    """Return what the last step computes too wide, the longest first."""
    wide = [
        i
        for i in graph.of_step(graph.last_step)
        if graph.computes(i) and any(use.dtype in _WIDE for use in graph.operators[i].writes)
    ]
    records = [*(_double(graph, group) for group in components(graph, wide)), *_single(graph)]
    merged: dict[tuple[object, ...], list[TooWide]] = {}
    for one in records:
        merged.setdefault((one.kind, one.value_line, one.use_line, one.is_certain), []).append(one)
    joined = (
        TooWide(
            same[0].kind,
            graph.work(i for one in same for i in one.work.operators),
            same[0].value_line,
            same[0].use_line,
            same[0].is_certain,
        )
        for same in merged.values()
    )
    return tuple(sorted(joined, key=lambda one: -one.work.share))


def narrows_inputs(graph: Graph) -> bool:
    """Return whether the last step got float64, and at most joined or copied it before it made it narrower."""
    wide = {i for i, value in enumerate(graph.values) if value.dtype in _WIDE and value.shape and graph.comes_in(i)}
    came = False
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if wide.isdisjoint(use.value for use in one.reads):
            continue
        came = True
        if not is_copy(one) and base_name(one) not in _JOINS:
            return False
        wide |= {use.value for use in one.writes if use.dtype in _WIDE}
    return came and not any(graph.lives_on[value] or not graph.readers[value] for value in wide)


def _double(graph: Graph, group: list[int]) -> TooWide:
    inside = set(group)
    read = [graph.values[use.value] for i in group for use in graph.operators[i].reads if use.dtype in _WIDE]
    chosen = any(value.role in _STATE or (value.role == "constant" and value.shape) for value in read)
    made = [use.value for i in group for use in graph.operators[i].writes]
    narrow = [i for value in made for i in graph.readers[value] if i not in inside]
    kept = any(graph.lives_on[value] and graph.born[value] < graph.last_step for value in made)
    use_line = graph.operators[narrow[0]].place if narrow else None
    return TooWide("float64", graph.work(group), graph.operators[group[0]].place, use_line, not (chosen or kept))


def _single(graph: Graph) -> list[TooWide]:
    """Return groups in float32 with a product, all of which comes from 16 bits and becomes 16-bit again."""
    inner = [i for i in graph.of_step(graph.last_step) if _is_single(graph, i)]
    found = []
    for group in components(graph, inner):
        inside = set(group)
        made = [use.value for i in group for use in graph.operators[i].writes]
        leaving = [j for value in made for j in graph.readers[value] if j not in inside]
        read = [use.value for i in group for use in graph.operators[i].reads if use.dtype == "float32"]
        comes_in = any(graph.values[value].producer not in inside for value in read)
        is_result = any(not graph.readers[value] for value in made)
        if comes_in or is_result or not leaving or not any(is_product(graph.operators[i]) for i in group):
            continue
        if all(_narrows(graph.operators[j]) for j in leaving) and not any(graph.lives_on[value] for value in made):
            work = graph.work({*group, *leaving})
            lines = graph.operators[group[0]].place, graph.operators[leaving[0]].place
            found.append(TooWide("float32", work, *lines, True))
    return found


def _is_single(graph: Graph, i: int) -> bool:
    one = graph.operators[i]
    return graph.computes(i) and one.phase != "optimizer" and all(use.dtype == "float32" for use in one.writes)


def _narrows(one: Operator) -> bool:
    return is_copy(one) and bool(one.writes) and all(use.dtype in _HALF for use in one.writes)
