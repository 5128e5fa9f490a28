"""Width: float64 between narrower ends, and float32 with products between 16-bit ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Literal, NamedTuple

from diagnose.dataflow.graph import Graph, Work, base_name, components, is_copy, is_product
from diagnose.model.dataflow import TAKES_OVER, Frame

__all__ = ["TooWide", "narrows_inputs", "too_wide"]

_WIDE = frozenset({"float64", "double", "complex128"})
_JOINS = frozenset({"stack", "cat"})
_HALF = frozenset({"bfloat16", "float16", "half"})
_CHOSEN = frozenset({"parameter", "buffer", "optimizer state", "state", "constant"})


class TooWide(NamedTuple):
    """Operators that compute in a wider type than what goes in and what comes out."""

    kind: Literal["float64", "float32"]
    work: Work
    value_line: Frame | None  # where the wide values come to be
    use_line: Frame | None  # where they become narrow
    is_certain: bool  # False if something wide comes in or lives on: a type that was chosen
    source: Literal["made", "input", "kept"] = (
        "made"  # of the wide values: an operator; they come with the step, or stay
    )
    names: tuple[str, ...] = ()  # of parameters and buffers that are wide
    shapes: tuple[tuple[int, ...], ...] = ()  # of wide values that come with the step
    input_line: Frame | None = None  # that makes a tensor of what comes with the step


def too_wide(graph: Graph) -> tuple[TooWide, ...]:
    """Return what the last step computes too wide, the longest first."""
    merged: dict[tuple[object, ...], list[TooWide]] = defaultdict(list)
    for one in (*_double(graph), *_single(graph)):
        merged[one._replace(work=Work((), 0.0, ()), names=(), shapes=())].append(one)
    joined = (
        same[0]._replace(
            work=graph.work(i for one in same for i in one.work.operators),
            names=tuple(dict.fromkeys(name for one in same for name in one.names)),
            shapes=tuple(dict.fromkeys(shape for one in same for shape in one.shapes)),
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


def _double(graph: Graph) -> Iterator[TooWide]:
    """Yield groups in float64; it was chosen if something that stays as it is has that type."""
    computing = (i for i in graph.of_step(graph.last_step) if graph.computes(i))
    wide = [i for i in computing if any(use.dtype in _WIDE for use in graph.operators[i].writes)]
    for group in components(graph, wide):
        read = dict.fromkeys(use.value for i in group for use in graph.operators[i].reads if use.dtype in _WIDE)
        chosen = [value for each in read if (value := graph.values[each]).role in _CHOSEN]
        inputs = {each for each in read if graph.comes_in(each)}
        shapes = tuple(graph.values[each].shape for each in read if each in inputs)
        source: Literal["made", "input", "kept"] = "kept" if chosen else "input" if shapes else "made"
        names = tuple(value.name for value in chosen if value.name)
        taken = (o.place for o in graph.operators if o.name == TAKES_OVER and o.reads[0].value in inputs)
        brought = (graph.made_at(each) for each in inputs)
        input_line = next((line for line in (*taken, *brought) if line is not None), None)
        leaving = _leaving(graph, group)
        use_line = graph.operators[leaving[0]].place if leaving else None
        first, work = graph.operators[group[0]].place, graph.work(group)
        yield TooWide("float64", work, first, use_line, not chosen, source, names, shapes, input_line)


def _single(graph: Graph) -> Iterator[TooWide]:
    """Yield groups in float32 with a product, all of which comes from 16 bits and becomes 16-bit again."""
    computing = (i for i in graph.of_step(graph.last_step) if graph.computes(i))
    single = (i for i in computing if all(use.dtype == "float32" for use in graph.operators[i].writes))
    for group in components(graph, (i for i in single if graph.operators[i].phase != "optimizer")):
        leaving = _leaving(graph, group)
        made = [use.value for i in group for use in graph.operators[i].writes]
        read = [use.value for i in group for use in graph.operators[i].reads if use.dtype == "float32"]
        narrows = all(any(use.dtype in _HALF for use in graph.operators[j].writes) for j in leaving)
        is_inner = all(graph.readers[value] for value in made) and {graph.values[v].producer for v in read} <= {*group}
        if narrows and is_inner and any(is_product(graph.operators[i]) for i in group):
            lines = graph.operators[group[0]].place, graph.operators[leaving[0]].place
            yield TooWide("float32", graph.work([*group, *leaving]), *lines, True)


def _leaving(graph: Graph, group: list[int]) -> list[int]:
    """Return the operators that read what a group makes and are not of it."""
    inside = set(group)
    made = (use.value for i in group for use in graph.operators[i].writes)
    return [i for value in made for i in graph.readers[value] if i not in inside]
