"""Common subexpressions: an operator with the attributes and contents of an earlier one in the same step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from diagnose.dataflow.graph import Graph, Work
from diagnose.dataflow.numbering import look, value_numbers
from diagnose.model.dataflow import Frame

__all__ = ["ComputedAgain", "computed_again", "equal_key", "repeats", "without_changed"]

Stack: TypeAlias = tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class ComputedAgain:
    """Operators whose results an earlier operator of the step had, and the backward pass of both where each has one."""

    kind: Literal["repeated", "recomputed"]  # recomputed: the backward pass runs the forward again, to save memory
    work: Work
    value_line: Frame | None  # that computed it first; of two calls of one function, the lines of the calls
    use_line: Frame | None  # that computes it again
    has_gradients: bool  # the backward pass goes through both: of their sum it would go once
    is_certain: bool  # False if contents are equal, perhaps by chance, that were not computed alike
    with_gradients: bool  # a backward pass goes through what is computed again


def computed_again(graph: Graph) -> tuple[ComputedAgain, ...]:
    """Return what the last step computes again, the longest first."""
    numbers = value_numbers(graph)
    earlier = repeats(graph, numbers)
    backward = _backward_of_both(graph, earlier)
    calls: dict[Stack, Frame | None] = {}
    groups: dict[tuple[Literal["repeated", "recomputed"], Frame | None, Frame | None, bool], list[int]] = {}
    for i, j in earlier.items():
        one, other = graph.operators[i], graph.operators[j]
        kind: Literal["repeated", "recomputed"] = "repeated"
        if one.phase == "backward" and other.phase == "forward":
            kind = "recomputed"
        if one.stack == other.stack and one.stack not in calls:
            calls[one.stack] = _left_between(graph, j, i)
        lines = (calls[one.stack],) * 2 if one.stack == other.stack else _callers(other.stack, one.stack)
        groups.setdefault((kind, *lines, _is_equal(graph, numbers, i, j)), []).append(i)
    records = (
        ComputedAgain(
            kind,
            graph.work({*rows, *(k for i in rows if kind == "repeated" for k in backward.get(i, ()))}),
            value,
            use,
            kind == "repeated" and not backward.keys().isdisjoint(rows),
            is_certain,
            any(graph.backward[i] for i in rows),
        )
        for (kind, value, use, is_certain), rows in groups.items()
    )
    return tuple(sorted(records, key=lambda one: -one.work.share))


def repeats(graph: Graph, numbers: Sequence[int]) -> dict[int, int]:
    """Return the operators of the last step that compute what an earlier one of it has computed, with that one."""
    first: dict[Hashable, int] = {}
    earlier: dict[int, int] = {}
    for i in graph.of_step(graph.last_step):
        if can_be_kept(graph, i):
            j = first.setdefault(equal_key(graph, numbers, i), i)
            if j != i:
                earlier[i] = j
    return without_changed(graph, earlier)


def _backward_of_both(graph: Graph, earlier: dict[int, int]) -> dict[int, list[int]]:
    """Return the backward operators of those repeated ones whose first one has a backward pass as well."""
    pairs = {i: [[k for k in graph.backward[n] if k not in earlier] for n in (i, j)] for i, j in earlier.items()}
    return {i: mine for i, (mine, others) in pairs.items() if mine and others}


def _callers(one: Stack, other: Stack) -> tuple[Frame | None, Frame | None]:
    """Return where two stacks part, from the innermost frame on: the calls of what both run."""
    for first, second in zip(one, other, strict=False):
        if first != second:
            return first, second
    return (one[0] if one else None), (other[0] if other else None)


def _left_between(graph: Graph, first: int, again: int) -> Frame | None:
    """Return the outermost frame of a stack that was left between two operators which both have that stack."""
    stack = graph.operators[again].stack
    stays = len(stack)
    for i in range(first, again):
        other = graph.operators[i].stack
        pairs = zip(reversed(stack), reversed(other), strict=False)
        stays = min(stays, next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(stack), len(other))))
    return stack[max(len(stack) - stays - 1, 0)] if stack else None


def can_be_kept(graph: Graph, i: int) -> bool:
    """Return whether an operator's result could be kept: it is not drawn, and no change of what was there before."""
    one = graph.operators[i]
    return graph.makes_values(i) and not one.draws and all(graph.born[use.value] == one.step for use in one.writes)


def equal_key(graph: Graph, numbers: Sequence[int], i: int) -> Hashable:
    """Return what two operators share that compute the same: name, attributes, contents read and written."""
    one = graph.operators[i]
    read = tuple(look(graph, numbers, use) for use in one.reads)
    return one.name, one.attributes, read, tuple(look(graph, numbers, use) for use in one.writes)


def without_changed(graph: Graph, earlier: dict[int, int]) -> dict[int, int]:
    """Return the pairs whose results nothing changes in place afterwards, but operators that are pairs themselves."""
    kept: dict[int, int] = {}
    for i in sorted(earlier, reverse=True):
        j = earlier[i]
        if all(
            _changed_alike(graph, kept, one.value, other.value)
            for one, other in zip(graph.operators[i].writes, graph.operators[j].writes, strict=True)
        ):
            kept[i] = j
    return dict(sorted(kept.items()))


def _changed_alike(graph: Graph, kept: dict[int, int], one: int, other: int) -> bool:
    next_one, next_other = graph.later[one], graph.later[other]
    if next_one < 0 or next_other < 0:
        return next_one == next_other
    return kept.get(graph.values[next_one].producer) == graph.values[next_other].producer


def _is_equal(graph: Graph, numbers: tuple[int, ...], i: int, j: int) -> bool:
    """Return whether two operators compute the same, and do not only have equal contents by a sample or by chance."""
    pairs = zip(graph.operators[i].writes, graph.operators[j].writes, strict=True)
    return all(numbers[one.value] == numbers[other.value] for one, other in pairs)
