"""The shapes of operators' inputs, as a recording with shapes has them."""

from __future__ import annotations

import json
from functools import lru_cache

from diagnose.model.arrays import Rows
from diagnose.model.events import Trace
from diagnose.model.shapes import Shape

__all__ = ["shapes_in", "shapes_of", "shapes_of_each"]


def shapes_of(trace: Trace, row: int) -> tuple[Shape, ...]:
    """Return the shapes of an operator's arguments, () for one that is no tensor; those of a list one by one."""
    text = int(trace.events.shapes[row])
    return shapes_in(trace.names[text]) if text >= 0 else ()


def shapes_of_each(trace: Trace, rows: Rows) -> list[tuple[Shape, ...]]:
    """Return for each operator what ``shapes_of`` does."""
    names = trace.names
    return [shapes_in(names[text]) if text >= 0 else () for text in trace.events.shapes[rows].tolist()]


@lru_cache(maxsize=16_384)  # the operators of all steps have few different ones
def shapes_in(text: str) -> tuple[Shape, ...]:
    """Return the shapes in a text as a trace has it, "[[8, 3], []]"; () for what is no tensor."""
    try:
        given = json.loads(text)
    except ValueError:
        return ()
    found: list[Shape] = []
    for each in given if isinstance(given, list) else []:
        if isinstance(each, list) and each and all(isinstance(part, list) for part in each):
            found += map(_shape, each)
        else:
            found.append(_shape(each))
    return tuple(found)


def _shape(given: object) -> Shape:
    return tuple(given) if isinstance(given, list) and all(isinstance(n, int) for n in given) else ()
