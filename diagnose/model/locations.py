"""Places in the user's program, and single occurrences of a finding with what stood around them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from diagnose.model.user_files import is_own_file

__all__ = ["FRAME", "Example", "Where", "at_line", "in_library", "own_place"]

FRAME = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<function>.+)$")
"""A Python frame as the profiler writes it, with the first line of its function."""


@dataclass(frozen=True, slots=True)
class Where:
    """The place in the user's program; each field None where the trace does not show it.

    It is the innermost frame of the user's own files, with its line; ``library`` is what a library or generated code
    runs inside it. Without such a frame the place is the operator.
    """

    file: str | None = None
    line: int | None = None
    function: str | None = None
    op: str | None = None  # the outermost operator or annotation, such as aten::item
    stack: tuple[str, ...] = ()  # innermost first, "file(line): function" or an op's name
    code: str | None = None  # the text of the line, where the capture holds it
    library: str | None = field(default=None, compare=False)  # "file:line in function" that it ran inside the line
    last_line: int | None = None  # of the loop or function that begins at the line, where the place is all of it
    caller: Literal["", "module", "hook"] = field(default="", compare=False)  # what called it, as far as it matters


@dataclass(frozen=True, slots=True)
class Example:
    """One occurrence of a finding, with what stood around it."""

    step: int
    start_ns: int  # from the beginning of its step
    lost_ns: int
    before: str  # the device task before, or ""
    after: str  # the device task after, or ""
    host: str  # what the launching thread did meanwhile
    where: Where = Where()


def own_place(places: Iterable[Where]) -> Where | None:
    """Return the first place in the user's own files: a line of a library or of generated code cannot be edited."""
    return next((place for place in places if place.file and is_own_file(place.file)), None)


def in_library(places: Iterable[Where]) -> bool:
    """Return whether a library or generated code does it, inside a line of the user's or without one."""
    places = tuple(places)
    place = next((w for w in places if w.file or w.library), None)
    return place is not None and (place.library is not None or own_place(places) is None)


def at_line(place: Where) -> str:
    """Return "model.py:40", "model.py" without a line: of a full path the name alone, the finding has the rest."""
    file = place.file or ""
    name = file.rpartition("/")[2] if file.startswith("/") else file
    return name if place.line is None else f"{name}:{place.line}"
