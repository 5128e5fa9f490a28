"""Value numbers: two values with the same number have the same content, whatever was looked at.

A number stands for how a value was computed: the operator, its attributes and the numbers of what it read. Contents of
which only a sample was compared can then still be known to be equal.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from diagnose.dataflow.graph import Graph
from diagnose.model.dataflow import Operator, Use

__all__ = ["content", "look", "value_numbers"]

MAX_SAMPLED_ZEROS = 0.9  # of 256 elements: the other 25 tell contents apart


def value_numbers(graph: Graph) -> tuple[int, ...]:
    """Return a number for each value."""
    numbers: dict[Hashable, int] = {}
    found = [-1] * len(graph.values)
    for i, value in enumerate(graph.values):
        if value.producer < 0:
            key: Hashable = ("content", value.fingerprint) if value.is_exact and value.fingerprint else ("value", i)
            found[i] = numbers.setdefault(key, len(numbers))
    for i, one in enumerate(graph.operators):
        key = ("operator", i) if one.draws or one.is_opaque or one.is_collective else _computed(graph, i, one, found)
        for position, use in enumerate(one.writes):
            found[use.value] = numbers.setdefault((key, position), len(numbers))
    return tuple(found)


def _computed(graph: Graph, i: int, one: Operator, found: list[int]) -> Hashable:
    read = tuple((found[use.value], _geometry(use)) for use in one.reads)
    needed = tuple(found[value] for value in graph.needs[i])
    return one.name, one.attributes, read, needed, tuple(map(_geometry, one.writes))


def content(graph: Graph, numbers: Sequence[int], value: int) -> Hashable:
    """Return what stands for the content of a value: its fingerprint, or its number if that says too little.

    A sample of elements that are nearly all the same does not tell two contents apart.
    """
    one = graph.values[value]
    says_little = not one.is_exact and (one.kind in ("constant", "one-hot") or one.zeros > MAX_SAMPLED_ZEROS)
    return numbers[value] if says_little or not one.fingerprint else one.fingerprint


def look(graph: Graph, numbers: Sequence[int], use: Use) -> Hashable:
    """Return what stands for what an operator sees of a value."""
    return content(graph, numbers, use.value), _geometry(use)


def _geometry(use: Use) -> Hashable:
    return use.shape, use.stride, use.offset, use.dtype
