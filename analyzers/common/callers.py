"""The line of the script that calls operators."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TypeAlias

import numpy as np

from diagnose.analyzers.common.locate import locate, sampled_lines, source_line
from diagnose.model.arrays import Ints
from diagnose.model.diagnosis import Where
from diagnose.model.intervals import Intervals
from diagnose.model.locations import FRAME
from diagnose.tables import Tables, shared_table
from diagnose.tables.sampled_issuer import PASSES_ON

__all__ = ["operator_lines"]

MAX_PLACES = 3

_Function: TypeAlias = tuple[str, int, str]  # file, first line, name


def operator_lines(t: Tables, during: Intervals, times: Ints) -> tuple[Where, ...]:
    """Return the line that ran during operators, as the sampler saw it; else those at times of the attribution window.

    ``times`` lie within the same operators there.
    """
    sampled = tuple(place for place, _ in sampled_lines(t, during, MAX_PLACES))
    if sampled:
        return sampled[:1]
    places = locate(t.named, np.full(len(times), t.named.main, np.int16), times)
    each = [
        replace(_at_function(t, (place.file, place.line, place.function)), op=place.op)
        for place in places
        if place.file and place.line and place.function
    ]
    return tuple(dict.fromkeys(each))[:MAX_PLACES]


def _at_function(t: Tables, function: _Function) -> Where:
    """Return the line of a function that the sampler of the run saw most, backward passes and optimizers left out."""
    file, first, name = function
    end = min((other for other in _first_lines(t).get(PurePosixPath(file).name, ()) if other > first), default=None)
    seen, run = Counter[tuple[str, int]](), t.capture.run
    if run is not None and len(run.path):
        num: Ints = np.bincount(run.path, minlength=len(run.paths))
        for path, count in zip(run.paths, num.tolist(), strict=True):
            for at in path:
                mine = _is_same(at[0], file) and at[2] == name and first <= at[1] < (end or at[1] + 1)
                if mine and PASSES_ON.search(t.capture.lines.get(at[:2], "")) is None:
                    seen[at[0], at[1]] += count
    if not seen:
        return Where(file, first, name, code=source_line(t, file, first))
    (file, line), _ = seen.most_common(1)[0]
    return Where(file, line, name, code=source_line(t, file, line))


@shared_table
def _first_lines(t: Tables) -> dict[str, set[int]]:
    """Return the first lines of the functions that were recorded, by the name of their file."""
    found: dict[str, set[int]] = {}
    for match in map(FRAME.match, t.named.trace.names):
        if match:
            found.setdefault(PurePosixPath(match["file"]).name, set()).add(int(match["line"]))
    return found


def _is_same(one: str, other: str) -> bool:
    """Return whether two names are of one file: the profiler cuts folders off."""
    return PurePosixPath(one).name == PurePosixPath(other).name
