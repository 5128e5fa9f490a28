"""The place that samples of the whole run show, as a finding has it."""

from __future__ import annotations

from dataclasses import replace

from diagnose.model.diagnosis import Where
from diagnose.tables import Tables

__all__ = ["places_of"]

MAX_CALLERS = 2


def places_of(t: Tables, path: tuple[tuple[str, int, str], ...]) -> tuple[Where, ...]:
    """Return the innermost line of a sampled path with its stack, and the lines that call it."""
    if not path:
        return ()
    stack = tuple(f"{file}({line}): {function}" for file, line, function in path)
    first, *callers = (
        Where(file, line, function, code=t.capture.lines.get((file, line))) for file, line, function in path
    )
    return (replace(first, stack=stack), *callers[:MAX_CALLERS])
