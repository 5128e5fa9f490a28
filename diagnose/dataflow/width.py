"""Width: float64 between narrower ends, and products in float32 of what was 16-bit and becomes so again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from diagnose.dataflow.graph import Graph, Work, components
from diagnose.dataflow.names import is_copy, is_product
from diagnose.model.dataflow import Frame

__all__ = ["TooWide", "too_wide"]

_WIDE = frozenset({"float64", "double", "complex128"})
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
    """Return products in float32 whose arguments were widened from 16 bits, and whose result is narrowed again."""
    found = []
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if not is_product(one) or any(use.dtype != "float32" for use in one.writes):
            continue
        widened = [_widened(graph, use.value) for use in one.reads]
        readers = [reader for use in one.writes for reader in graph.readers[use.value]]
        narrowed = [
            j
            for j in readers
            if is_copy(graph.operators[j]) and all(use.dtype in _HALF for use in graph.operators[j].writes)
        ]
        casts = [cast for cast in widened if cast is not None]
        if casts and len(casts) == len(widened) and narrowed and len(narrowed) == len(readers):
            value_line, use_line = graph.operators[casts[0]].place, graph.operators[narrowed[0]].place
            found.append(TooWide("float32", graph.work({i, *casts, *narrowed}), value_line, use_line, True))
    return found


def _widened(graph: Graph, value: int) -> int | None:
    """Return the operator that widened a value from 16 bits, None if none did."""
    made = graph.producer(value)
    is_cast = made is not None and is_copy(made) and all(use.dtype in _HALF for use in made.reads)
    return graph.values[value].producer if is_cast else None
