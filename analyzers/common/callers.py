"""The function of the script that calls of a module have in common: what it computes once all of them can use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import PurePosixPath
from typing import TypeAlias

import numpy as np

from diagnose.analyzers.common.locate import locate, sampled_lines, source_line
from diagnose.model.arrays import Ints
from diagnose.model.diagnosis import Where
from diagnose.model.intervals import EMPTY, Intervals
from diagnose.model.locations import FRAME
from diagnose.model.user_files import is_own_file
from diagnose.tables import Tables, shared_table
from diagnose.tables.host import Layers
from diagnose.tables.repeated_calls import RepeatedCall
from diagnose.tables.sampled_issuer import PASSES_ON

__all__ = ["at_function", "callers", "operator_lines"]

MAX_PLACES = 3
MAX_CALLS = 64  # of a module, whose stacks are compared
_NO_LAYERS = Layers((), (), EMPTY.end)

_Function: TypeAlias = tuple[str, int, str]  # file, first line, name
_Stack: TypeAlias = tuple[_Function, ...]  # outermost first


def callers(t: Tables, calls: Sequence[RepeatedCall]) -> tuple[Where, ...]:
    """Return the innermost function that calls come from, and what calls that.

    That of all calls; of the first module's alone, where the others are called from another part of the script. Lines
    are those that the sampler saw most of a function, and its first one where it saw none; where one of the calls comes
    from a function further in, that at which this one is called.
    """
    of_calls = [[_stack(t, int(at)) for at in call.begins[:MAX_CALLS]] for call in calls]
    stacks = [common for each in of_calls if (common := _common(each))]
    if not stacks:
        return ()
    common = _common(stacks)
    chosen = common if len(common) > 1 else stacks[0]
    deeper = [stack[len(chosen)] for each in of_calls for stack in each if stack[:-1][: len(chosen)] == chosen]
    inner = [*chosen[1:], deeper[0] if deeper else None]
    each = [at_function(t, function, calls=callee) for function, callee in zip(chosen, inner, strict=True)]
    return tuple(reversed(each[-MAX_PLACES:]))


def operator_lines(t: Tables, during: Intervals, times: Ints) -> tuple[Where, ...]:
    """Return the line that ran during operators, as the sampler saw it; else those at times of the attribution window.

    ``times`` lie within the same operators there.
    """
    sampled = tuple(place for place, _ in sampled_lines(t, during, MAX_PLACES))
    if sampled:
        return sampled[:1]
    places = locate(t.named, np.full(len(times), t.named.main, np.int16), times)
    each = [
        replace(at_function(t, (place.file, place.line, place.function)), op=place.op)
        for place in places
        if place.file and place.line and place.function
    ]
    return tuple(dict.fromkeys(each))[:MAX_PLACES]


def _stack(t: Tables, time: int) -> _Stack:
    """Return the script's functions that are open at a time of the attribution window."""
    named = t.named
    layers = named.frame_layers.get(named.main, _NO_LAYERS)
    opened = layers.at_each(np.array([time], np.int64))[0] if layers.rows else []
    matches = [FRAME.match(named.name(row)) for row in opened]
    return tuple(
        (match["file"], int(match["line"]), match["function"])
        for match in matches
        if match and is_own_file(match["file"])
    )


def _common(stacks: Sequence[_Stack]) -> _Stack:
    if not stacks:
        return ()
    same = takewhile(lambda each: len(set(each)) == 1, zip(*stacks, strict=False))
    return tuple(each[0] for each in same)


def at_function(t: Tables, function: _Function, *, calls: _Function | None = None) -> Where:
    """Return the line of a function that the sampler of the whole run saw most, of those at which it calls another.

    Of those at which it calls no function of the script's, a backward pass and an optimizer's step are left out.
    """
    file, first, name = function
    end = min((other for other in _first_lines(t).get(PurePosixPath(file).name, ()) if other > first), default=None)
    seen, run = Counter[tuple[str, int]](), t.capture.run
    if run is not None and len(run.path):
        num: Ints = np.bincount(run.path, minlength=len(run.paths))
        for path, count in zip(run.paths, num.tolist(), strict=True):
            for inner, at in zip((None, *path), path, strict=False):
                mine = _is_same(at[0], file) and at[2] == name and first <= at[1] < (end or at[1] + 1)
                if not mine:
                    continue
                if calls is None:
                    counts = PASSES_ON.search(t.capture.lines.get(at[:2], "")) is None
                else:
                    counts = inner is not None and inner[2] == calls[2]
                if counts:
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
