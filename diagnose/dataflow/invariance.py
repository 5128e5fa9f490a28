"""Constant work: what a step computes from values that are the same in each step.

An operator is constant if each value that it reads is known to be: it was there before the steps and nothing changed
it, or a constant operator made it. A value that came in with the step (a batch, or what Python made) counts as constant
only if its content is the same as in the step before, and says something: all zeros, or all True, may be luck.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

from diagnose.dataflow.graph import Graph, Work, components
from diagnose.dataflow.numbering import value_numbers
from diagnose.dataflow.repeats import can_be_kept, equal_key, without_changed
from diagnose.model.dataflow import Frame, Use

__all__ = ["ConstantWork", "constant_work"]


@dataclass(frozen=True, slots=True)
class ConstantWork:
    """Operators that make the same in each step."""

    kind: str  # of the content that they make: "triangular", "one-hot", ""
    work: Work
    value_line: Frame | None  # that makes the last of it
    use_line: Frame | None  # the first use of that
    shape: tuple[int, ...]
    is_certain: bool  # no value that came in with the step is part of it


def constant_work(graph: Graph) -> tuple[ConstantWork, ...]:
    """Return what the last step computes as the one before did, the longest first."""
    if graph.flow.num_steps < 2:
        return ()
    numbers = value_numbers(graph)
    before: dict[Hashable, list[int]] = defaultdict(list)
    for i in graph.of_step(graph.last_step - 1):
        if can_be_kept(graph, i):
            before[graph.operators[i].place, equal_key(graph, numbers, i)].append(i)
    same: dict[int, int] = {}
    came_in: set[int] = set()
    for i in graph.of_step(graph.last_step):
        match = before.get((graph.operators[i].place, equal_key(graph, numbers, i))) if can_be_kept(graph, i) else None
        if match and all(_is_constant(graph, use, other, same) for use, other in _read(graph, i, match[0])):
            same[i] = match.pop(0) if len(match) > 1 else match[0]
            if any(_came_in(graph, value, came_in) for value in graph.needs[i]):
                came_in.add(i)
    groups: dict[tuple[Frame, ...], list[list[int]]] = defaultdict(list)
    for group in components(graph, without_changed(graph, same)):
        groups[graph.work(group).lines].append(group)
    records = (_record(graph, each, came_in) for each in groups.values())
    return tuple(sorted(records, key=lambda one: -one.work.share))


def _read(graph: Graph, i: int, j: int) -> list[tuple[Use, Use]]:
    pairs = zip(graph.operators[i].reads, graph.operators[j].reads, strict=True)
    return [(use, other) for use, other in pairs if use.value in graph.needs[i]]


def _is_constant(graph: Graph, use: Use, other: Use, same: dict[int, int]) -> bool:
    """Return whether what an operator reads is the same in each step; contents were compared before."""
    value = graph.values[use.value]
    if use.value == other.value or value.producer in same:
        return True
    says_something = value.kind != "constant" and bool(value.fingerprint)
    return graph.comes_in(use.value) and (says_something or value.shape == ())


def _came_in(graph: Graph, value: int, came_in: set[int]) -> bool:
    return graph.values[value].producer in came_in or graph.comes_in(value)


def _record(graph: Graph, groups: list[list[int]], came_in: set[int]) -> ConstantWork:
    rows = [i for group in groups for i in group]
    inside = set(rows)
    last = groups[0][-1]
    value = graph.operators[last].writes[0].value
    readers = [i for i in graph.readers[value] if i not in inside]
    return ConstantWork(
        kind=graph.values[value].kind,
        work=graph.work(rows),
        value_line=graph.operators[last].place,
        use_line=graph.operators[readers[0]].place if readers else None,
        shape=graph.operators[last].writes[0].shape,
        is_certain=came_in.isdisjoint(inside),
    )
