"""Which operators enclosed a moment of a host thread, and the user's line behind it.

Sources, the most exact first: the sampler's lines (the line being executed), Python frames recorded by the profiler
(only the first line of each function, no line of the function that runs the recording), and the call stacks that old
exporters attach to operators. An operator of the timing window, which has no frames, has those of the same call in the
attribution window; one of the backward pass has the place of the operator whose gradient it takes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Literal

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints
from diagnose.model.diagnosis import Where
from diagnose.model.intervals import Intervals, distinct
from diagnose.model.locations import FRAME
from diagnose.model.user_files import INSTALLED, is_own_file, is_user_file
from diagnose.tables import Tables
from diagnose.tables.names import BACKWARD, KERNEL_LAUNCH, LOADER_NEXT, STEP_MARK
from diagnose.tables.python_calls import PASSES_ON
from diagnose.tables.step_calls import Call

__all__ = ["enclosing_operators", "locate", "locate_one", "sampled_lines", "source_line"]

UNFINISHED = "Unfinished"  # before the mark of a step that the recording ended in
MAX_LINES_APART = 2  # of one loop
MAX_LINES = 50  # that are looked at: those with most samples
_MODULE_CALL = re.compile(r"torch/nn/modules/module\.py\(\d+\): _(wrapped_)?call_impl|^nn\.Module: ")
_HOOK = re.compile(r"hook", re.IGNORECASE)
_MAX_STACK = 12
MIN_LINE_SHARE = 0.8  # of a call's samples in a function: the rest was read late, when the next line ran


def source_line(t: Tables, file: str, line: int) -> str | None:
    """Return the text of a source line as the capture holds it, else None: no file that a trace names is opened."""
    return t.capture.lines.get((file, line))


def enclosing_operators(t: Tables, thread: int, time: Ints) -> list[str]:
    """Return the names of the operators that were open on a thread at each time, outermost first."""
    layers = t.work_layers.get(thread)
    each = layers.at_each(time) if layers else [[] for _ in time]
    return [" > ".join(_names(t, rows)) or "between operators" for rows in each]


def _names(t: Tables, rows: list[int]) -> list[str]:
    return [name for name in map(t.name, rows) if not STEP_MARK.match(name.removeprefix(UNFINISHED))]


def locate_one(t: Tables, thread: int, time: int) -> Where:
    """Return where a thread was at ``time`` as far as the trace shows."""
    return locate(t, np.array([thread]), np.array([time], np.int64))[0]


def locate(t: Tables, thread: npt.NDArray[np.integer], time: Ints) -> list[Where]:
    """Return, for each thread and time, where it was as far as the trace shows."""
    found, known = [Where()] * len(time), dict[object, Where]()
    for one in distinct(thread).tolist():
        mine = np.flatnonzero(thread == one)
        for i, (work, frames) in zip(mine.tolist(), _open(t, one, time[mine]), strict=True):
            calls = _calls(t, work)
            alike = calls[0] if calls else None, tuple(_names(t, work)), tuple(_frames(t, work, frames))
            if alike not in known:  # all steps pass the same places
                known[alike] = _place(t, work, frames)
            found[i] = known[alike]
    return found


def _open(t: Tables, thread: int, time: Ints) -> list[tuple[list[int], list[int]]]:
    """Return the rows of the operators and of the frames that were open on a thread at each time, outermost first."""
    work, frames = t.work_layers.get(thread), t.frame_layers.get(thread)
    rows = work.at_each(time) if work else [[] for _ in time]
    stacks = frames.at_each(time) if frames else [[] for _ in time]
    return list(zip(rows, stacks, strict=True))


def _place(t: Tables, work: list[int], frames: list[int]) -> Where:
    """Return the place of a moment with these open rows: of the operator alone where no line of the user's is known."""
    here = _where(tuple(_names(t, work)), tuple(_frames(t, work, frames)), sum(row in t.open_frames for row in frames))
    node = next((row for row in work if BACKWARD.match(t.name(row))), None)
    if node is not None and not _runs_own_code(t, frames, node):
        forward = _of_forward(t, node)
        if forward is not None:
            return replace(forward, op=here.op, stack=here.stack)
    found = _with_line(t, here, _calls(t, work))
    if found.file is None or found.line is None:
        return replace(found, file=None, line=None, function=None)
    return found


def _runs_own_code(t: Tables, frames: list[int], node: int) -> bool:
    """Return whether a node of the backward pass calls a function of the user's."""
    inside = [t.name(row) for row in frames if t.trace.events.start[row] >= t.trace.events.start[node]]
    return any(match and is_own_file(INSTALLED.sub("", match["file"])) for match in map(FRAME.match, inside))


def _of_forward(t: Tables, node: int) -> Where | None:
    """Return the place of the operator whose gradient a node takes, None if no line is known."""
    linked, events = t.links, t.trace.events
    at = np.flatnonzero(linked.nodes == node)
    if not len(at):
        return None
    op = int(linked.ops[at[0]])
    ((work, frames),) = _open(t, int(events.thread[op]), events.start[op : op + 1])
    here = _where(tuple(_names(t, work)), tuple(_frames(t, work, frames)), sum(row in t.open_frames for row in frames))
    found = _with_line(t, here, _calls(t, work))
    return found if found.file is not None and found.line is not None else None


def _calls(t: Tables, work: Sequence[int]) -> list[Call]:
    """Return which calls of a step open rows are, innermost first."""
    of = t.step_calls.of
    return [of[row] for row in reversed(work) if row in of]


def _with_line(t: Tables, where: Where, calls: Sequence[Call]) -> Where:
    """Return a place with the line that was sampled in its function during these calls of all steps.

    Without a function it has that of the same call in the attribution window, else of the samples.
    """
    if where.file is None and t.named is not t:
        for call in calls:
            rows = t.named.step_calls.rows.get(call)
            named = _recorded(t.named, int(rows[0])) if rows is not None else Where()
            if named.file is not None or named.library is not None:
                where = replace(named, op=where.op, stack=where.stack)
                break
    if where.file is not None:
        where = replace(where, file=_as_sampled(t, where.file))
    for call in calls:
        seen = _seen_during(t, call)
        if where.file is not None:
            seen = Counter({at: num for at, num in seen.items() if (at[0], at[2]) == (where.file, where.function)})
        for (file, line, function), num in seen.most_common(1):
            code = source_line(t, file, line)
            is_late = LOADER_NEXT.search(call[0]) and PASSES_ON.search(code or "")  # of the step before
            if num >= MIN_LINE_SHARE * seen.total() and not is_late:
                return replace(where, file=file, line=line, function=function, code=code)
    return where


def _recorded(t: Tables, row: int) -> Where:
    """Return what the frames around a row show."""
    events = t.trace.events
    ((work, frames),) = _open(t, int(events.thread[row]), events.start[row : row + 1])
    node = next((each for each in work if BACKWARD.match(t.name(each))), None)
    if node is not None and not _runs_own_code(t, frames, node):
        return Where()  # the backward pass is called from one line, whatever it computes
    return _where(tuple(_names(t, work)), tuple(_frames(t, work, frames)), sum(r in t.open_frames for r in frames))


def _seen_during(t: Tables, call: Call) -> Counter[tuple[str, int, str]]:
    """Return how often the sampler saw each line during a call of the training thread, in all steps."""
    samples = t.capture.samples
    if samples is None or not t.trace.epoch_ns or not call[1]:
        return Counter()
    time, place = t.sampled_lines
    rows, events = t.step_calls.rows[call], t.trace.events
    first, last = np.searchsorted(time, events.start[rows]), np.searchsorted(time, events.end[rows])
    seen = [at for i, j in zip(first.tolist(), last.tolist(), strict=True) for at in place[i:j].tolist()]
    return Counter(samples.places[at] for at in seen)


def _as_sampled(t: Tables, file: str) -> str:
    """Return a file's name as the sampler has it, where one file is meant: the profiler cuts folders off."""
    alike = {each for each in t.sampled_files.get(PurePosixPath(file).name, ()) if f"/{each}".endswith(f"/{file}")}
    return alike.pop() if len(alike) == 1 else file


@lru_cache(maxsize=1024)  # all steps pass the same places
def _where(work: tuple[str, ...], frames: tuple[str, ...], num_open: int) -> Where:
    """Return the innermost frame of the user's own files, and the innermost of a library inside it.

    The outermost ``num_open`` frames were open as the recording began, with the line that ran then: that of all but the
    innermost of them, which still calls the next one. Where it is by now is not known.
    """
    op = next((name for name in work if not KERNEL_LAUNCH.match(name)), None)  # the launch itself is no place
    library: Where | None = None
    for depth, text in enumerate(frames):
        match = FRAME.match(text)
        if match is None or not is_user_file(INSTALLED.sub("", match["file"])):
            continue  # no line, or of torch or the standard library
        line = int(match["line"]) if not num_open or depth != len(frames) - num_open else None
        place = Where(INSTALLED.sub("", match["file"]), line, match["function"], op, frames[:_MAX_STACK])
        if is_own_file(match["file"]):
            return replace(place, library=_beside(library), caller=_caller(frames, depth))
        library = library or place
    if library is not None:
        caller = _caller(frames, len(frames) - 1)
        return Where(op=op, stack=frames[:_MAX_STACK], library=_beside(library), caller=caller)
    return Where(op=op, stack=(*reversed(work), *frames)[:_MAX_STACK])


def _beside(library: Where | None) -> str | None:
    if library is None:
        return None
    line = f":{library.line}" if library.line is not None else ""
    return f"{library.file}{line} in {library.function}"


def _caller(frames: tuple[str, ...], depth: int) -> Literal["", "module", "hook"]:
    """Return what called the innermost frame: a hook up to the user's own, or a module anywhere around it."""
    if any(map(_HOOK.search, frames[: depth + 1])):
        return "hook"
    return "module" if any(map(_MODULE_CALL.search, frames)) else ""


def _frames(t: Tables, work: list[int], frames: list[int]) -> list[str]:
    """Return the names of Python frames, innermost first; of an operator's call stack where none were recorded.

    The call stack of a step's mark is the line that ends the step before: nothing runs there.
    """
    if frames:
        return [t.name(row) for row in reversed(frames)]
    for row in reversed(work):
        detail = int(t.trace.events.detail[row])
        if detail >= 0 and "(" in t.trace.names[detail] and not STEP_MARK.match(t.name(row)):
            return [frame for frame in t.trace.names[detail].split(";") if frame]
    return []


def sampled_lines(t: Tables, during: Intervals, most: int = 3) -> list[tuple[Where, float]]:
    """Return the user's lines that the sampler saw while ``during`` lasted, with their share of its samples.

    Lines beside each other count together, as those of a loop: the line with most samples of the place that has most
    comes first. Of a few dozen samples each of two lines of a loop may have fewer than a single one elsewhere. Lines of
    loading that were seen late, where nothing is loaded, are left out.
    """
    samples = t.capture.samples
    if samples is None or not len(during.start) or not t.trace.epoch_ns:
        return []
    time = samples.time_ns - t.trace.epoch_ns
    i = np.searchsorted(during.start, time, side="right") - 1
    inside = (i >= 0) & (time < during.end[np.maximum(i, 0)]) & (samples.place >= 0)
    inside &= ~t.late_samples
    seen = Counter(samples.place[inside].tolist())
    total = sum(seen.values())
    found, places = [], samples.places
    often = seen.most_common(MAX_LINES)
    beside = {row: sum(n for other, n in often if _is_beside(places[row], places[other])) for row, _ in often}
    for row, count in sorted(often, key=lambda item: (-beside[item[0]], -item[1]))[:most]:
        file, line, function = places[row]
        op = _operator_at(t, time[inside][samples.place[inside] == row])
        found.append((Where(file, line, function, op, code=source_line(t, file, line)), count / total))
    return found


def _is_beside(one: tuple[str, int, str], other: tuple[str, int, str]) -> bool:
    return one[0] == other[0] and abs(one[1] - other[1]) <= MAX_LINES_APART


def _operator_at(t: Tables, time: Ints) -> str | None:
    """Return the operator that the stepping thread was in at most of the times, None between operators."""
    work = t.work_layers.get(t.main)
    opened = work.at_each(time) if work else []
    inner = [next((name for name in _names(t, rows) if not KERNEL_LAUNCH.match(name)), None) for rows in opened]
    return Counter(inner).most_common(1)[0][0] if inner else None
