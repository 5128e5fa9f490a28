"""Which values are needed after the steps, and which a variable merely holds until the next step replaces them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from diagnose.model.dataflow import Operator, Value

__all__ = ["needed_values"]


def needed_values(operators: Sequence[Operator], values: Sequence[Value], alive: frozenset[int]) -> frozenset[int]:
    """Return those of the values alive at the end that may be needed.

    The last step ends with the loss, the last batch and the gradients still there. What the same operator made in the
    step before shows whether they are read in the next step: if it was replaced without being read, they are not.
    """
    last = operators[-1].step if operators else 0
    read = {use.value for operator in operators if operator.step == last for use in operator.reads}
    latest = {value.storage: number for number, value in enumerate(values)}
    begin = next((i for i, operator in enumerate(operators) if operator.step == last), 0)
    leftovers = set[tuple[object, ...]]()
    for key, number in _made(operators, last - 1):
        value = values[number]
        is_gone = value.dies >= begin or latest[value.storage] != number
        if is_gone and number not in read:
            leftovers.add(key)
    of_last = {number: key for key, number in _made(operators, last)}
    return frozenset(number for number in alive if of_last.get(number) not in leftovers)


def _made(operators: Sequence[Operator], step: int) -> Iterator[tuple[tuple[object, ...], int]]:
    """Yield the values that a step's operators write, each with what identifies it in every step."""
    count = Counter[tuple[object, ...]]()
    for operator in operators:
        if operator.step == step:
            key = operator.name, operator.phase, operator.stack, operator.module
            count[key] += 1
            for i, use in enumerate(operator.writes):
                yield (*key, count[key], i), use.value
