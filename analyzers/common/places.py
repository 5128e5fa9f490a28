"""Places that no task or operator shows: of samples of the whole run, and of the calls that a capture holds."""

from __future__ import annotations

from dataclasses import replace

from diagnose.model.diagnosis import Where
from diagnose.model.records import CallRecord
from diagnose.tables import Tables

__all__ = ["place_of_call", "places_of"]

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


def place_of_call(call: CallRecord | None) -> tuple[Where, ...]:
    """Return the line that a call begins in, nothing where there is none or its lines do not hold it."""
    if call is None or not call.first <= call.begin[0] < call.first + len(call.lines):
        return ()
    line = call.begin[0]
    return (Where(call.file, line, code=call.lines[line - call.first].strip()),)
