"""Which operators enclosed a moment of a host thread, and the user's line behind it.

Three sources, the most exact first: the sampler's lines (the line being executed), Python frames recorded by the
profiler (only the first line of each function), and the call stacks that old exporters attach to operators.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints
from diagnose.model.diagnosis import Where
from diagnose.model.intervals import Intervals, distinct
from diagnose.tables import Tables
from diagnose.tables.names import STEP_MARK

__all__ = ["enclosing_operators", "is_user_file", "locate", "locate_one", "sampled_lines", "source_line"]

_FRAME = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<function>.+)$")
_LIBRARY = re.compile(
    r"(^|/)(site-packages|dist-packages|lib/python3[^/]*|torch|torchvision|triton|numpy|diagnose)/|^<"
)
_MAX_STACK = 12


def is_user_file(file: str) -> bool:
    """Tell whether a file is the user's own: neither torch, nor an installed package, nor the standard library."""
    if _LIBRARY.search(file):
        return False
    path = PurePosixPath(file)
    return path.is_absolute() or path.parts[0].removesuffix(".py") not in sys.stdlib_module_names


def source_line(t: Tables, file: str, line: int) -> str | None:
    """Return the text of a source line as the capture holds it, else None: no file that a trace names is opened."""
    return t.capture.lines.get((file, line))


def enclosing_operators(t: Tables, thread: int, time: Ints) -> list[str]:
    """Return the names of the operators that were open on a thread at each time, outermost first."""
    layers = t.work_layers.get(thread)
    each = layers.at_each(time) if layers else [[] for _ in time]
    return [" > ".join(_names(t, rows)) or "between operators" for rows in each]


def _names(t: Tables, rows: list[int]) -> list[str]:
    return [name for name in map(t.name, rows) if not STEP_MARK.match(name)]


def locate_one(t: Tables, thread: int, time: int) -> Where:
    """Return where a thread was at ``time`` as far as the trace shows."""
    return locate(t, np.array([thread]), np.array([time], np.int64))[0]


def locate(t: Tables, thread: npt.NDArray[np.integer], time: Ints) -> list[Where]:
    """Return, for each thread and time, where it was as far as the trace shows."""
    found = [Where()] * len(time)
    for one in distinct(thread).tolist():
        mine = np.flatnonzero(thread == one)
        work, frames = t.work_layers.get(one), t.frame_layers.get(one)
        rows = work.at_each(time[mine]) if work else [[] for _ in mine]
        stacks = frames.at_each(time[mine]) if frames else [[] for _ in mine]
        for i, opened, stack in zip(mine.tolist(), rows, stacks, strict=True):
            found[i] = _where(_names(t, opened), _frames(t, opened, stack))
    return found


def _where(work: list[str], frames: list[str]) -> Where:
    op = work[0] if work else None
    for text in frames:
        match = _FRAME.match(text)
        if match and is_user_file(match["file"]):
            line = int(match["line"])
            return Where(match["file"], line, match["function"], op, tuple(frames[:_MAX_STACK]))
    return Where(op=op, stack=tuple((list(reversed(work)) + frames)[:_MAX_STACK]))


def _frames(t: Tables, work: list[int], frames: list[int]) -> list[str]:
    """Return the names of Python frames, innermost first; of an operator's call stack where none were recorded."""
    if frames:
        return [t.name(row) for row in reversed(frames)]
    for row in reversed(work):
        detail = int(t.trace.events.detail[row])
        if detail >= 0 and "(" in t.trace.names[detail]:
            return [frame for frame in t.trace.names[detail].split(";") if frame]
    return []


def sampled_lines(t: Tables, during: Intervals, most: int = 3) -> list[tuple[Where, float]]:
    """Return the user's lines that the sampler saw while ``during`` lasted, with their share of its samples."""
    samples = t.capture.samples
    if samples is None or not len(during.start) or not t.trace.epoch_ns:
        return []
    time = samples.time_ns - t.trace.epoch_ns
    i = np.searchsorted(during.start, time, side="right") - 1
    inside = (i >= 0) & (time < during.end[np.maximum(i, 0)]) & (samples.place >= 0)
    seen = Counter(samples.place[inside].tolist())
    total = sum(seen.values())
    found = []
    for row, count in seen.most_common(most):
        file, line, function = samples.places[row]
        found.append((Where(file, line, function, code=source_line(t, file, line)), count / total))
    return found
