"""The shapes of operators' inputs, as a recording with shapes has them."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TypeAlias

from diagnose.model.events import Trace

__all__ = ["Shape", "shapes_of"]

Shape: TypeAlias = tuple[int, ...]


def shapes_of(trace: Trace, row: int) -> tuple[Shape, ...]:
    """Return the shapes of an operator's arguments, () for one that is no tensor; those of a list one by one."""
    text = int(trace.events.shapes[row])
    return _parsed(trace.names[text]) if text >= 0 else ()


@lru_cache(maxsize=16_384)  # the operators of all steps have few different ones
def _parsed(text: str) -> tuple[Shape, ...]:
    try:
        given = json.loads(text)
    except ValueError:
        return ()
    found: list[Shape] = []
    for each in given if isinstance(given, list) else []:
        if isinstance(each, list) and each and all(isinstance(part, list) for part in each):
            found += [tuple(part) for part in each]
        else:
            found.append(tuple(each) if isinstance(each, list) else ())
    return tuple(found)
