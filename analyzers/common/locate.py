"""Which operators enclosed a moment of a host thread, and the user's line behind it.

Sources, the most exact first: the data flow, which has the line of each operator; the sampler's lines (the line being
executed); Python frames recorded by the profiler (only the first line of each function, no line of the function that
runs the recording); and the call stacks that old exporters attach to operators. An operator of the timing window, which
has no frames, has those of the same call in the attribution window; one of the backward pass has the place of the
operator whose gradient it takes.
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
from diagnose.model.intervals import Intervals, contains, distinct
from diagnose.model.locations import FRAME, INSTALLED, is_own_file, is_user_file
from diagnose.model.records import CallRecord
from diagnose.tables import Tables
from diagnose.tables.names import BACKWARD, KERNEL_LAUNCH, LOADER_NEXT, STEP_MARK
from diagnose.tables.python_calls import PASSES_ON
from diagnose.tables.step_calls import Call

UNFINISHED = "Unfinished"  # before the mark of a step that the recording ended in
MAX_LINES_APART = 2  # of one loop
_MODULE_CALL = re.compile(r"torch/nn/modules/module\.py\(\d+\): _(wrapped_)?call_impl|^nn\.Module: ")
_HOOK = re.compile(r"hook", re.IGNORECASE)


def source_line(t: Tables, file: str, line: int) -> str | None:
    """Return the text of a source line as the capture holds it, else None: no file that a trace names is opened."""
    return t.capture.lines.get((file, line))


def line_at(t: Tables, file: str, line: int, function: str | None = None, op: str | None = None) -> Where:
    """Return a line as a place, with its text."""
    return Where(file, line, function, op, code=source_line(t, file, line))


def places_of(t: Tables, path: tuple[tuple[str, int, str], ...]) -> tuple[Where, ...]:
    """Return the innermost line of a path that was sampled in the whole run with its stack, and two that call it."""
    stack = tuple(f"{file}({line}): {function}" for file, line, function in path)
    found = [line_at(t, *place) for place in path[:3]]
    return (*(replace(place, stack=stack) for place in found[:1]), *found[1:])


def place_of_call(call: CallRecord | None) -> tuple[Where, ...]:
    """Return the line that a call which a capture holds begins in; nothing if its lines do not hold it."""
    if call is None or not call.first <= call.begin[0] < call.first + len(call.lines):
        return ()
    line = call.begin[0]
    return (Where(call.file, line, code=call.lines[line - call.first].strip()),)


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
    found, known, lines = [Where()] * len(time), dict[object, Where](), t.flow.lines if t.flow else {}
    for one in distinct(thread).tolist():
        mine = np.flatnonzero(thread == one)
        for i, (work, frames) in zip(mine.tolist(), _open(t, one, time[mine]), strict=True):
            # The data flow's line of the innermost open operator that it knows.
            calls, line = _calls(t, work), next((lines[row] for row in reversed(work) if row in lines), None)
            alike = calls[0] if calls else None, tuple(_names(t, work)), tuple(_frames(t, work, frames)), line
            if alike not in known:  # all steps pass the same places
                known[alike] = _traced_place(t, work, frames)
                if line is not None:
                    code = source_line(t, line.file, line.line)
                    known[alike] = replace(
                        known[alike], file=line.file, line=line.line, function=line.function, code=code
                    )
            found[i] = known[alike]
    return found


def ranked_places(
    t: Tables, thread: npt.NDArray[np.integer], time: Ints, cost: npt.NDArray[np.integer]
) -> list[tuple[Where, int]]:
    """Return where threads were at some times, the place first that costs most, with what it costs."""
    found = Counter[Where]()
    for where, each in zip(locate(t, thread, time), cost.tolist(), strict=True):
        found[replace(where, stack=())] += each
    return found.most_common()


def _open(t: Tables, thread: int, time: Ints) -> list[tuple[list[int], list[int]]]:
    """Return the rows of the operators and of the frames that were open on a thread at each time, outermost first."""
    work, frames = t.work_layers.get(thread), t.frame_layers.get(thread)
    rows = work.at_each(time) if work else [[] for _ in time]
    stacks = frames.at_each(time) if frames else [[] for _ in time]
    return list(zip(rows, stacks, strict=True))


def _traced_place(t: Tables, work: list[int], frames: list[int]) -> Where:
    """Return the place that frames and samples show: of the operator alone if they show no line of the user's."""
    here, events = _shown(t, work, frames), t.trace.events
    node = _node_of_torch(t, work, frames)
    of_node = t.links.ops[t.links.nodes == node][:1] if node is not None else ()
    for op in of_node:  # whose gradient the node takes
        ((around, called),) = _open(t, int(events.thread[op]), events.start[op : op + 1])
        forward = _with_line(t, _shown(t, around, called), _calls(t, around))
        if forward.file is not None and forward.line is not None:
            return replace(forward, op=here.op, stack=here.stack)
    found = _with_line(t, here, _calls(t, work))
    if found.file is None or found.line is None:
        return replace(found, file=None, line=None, function=None)
    return found


def _shown(t: Tables, work: list[int], frames: list[int]) -> Where:
    """Return what these open rows show by themselves."""
    num_open = sum(row in t.open_frames for row in frames)
    return _where(tuple(_names(t, work)), tuple(_frames(t, work, frames)), num_open)


def _node_of_torch(t: Tables, work: list[int], frames: list[int]) -> int | None:
    """Return the open node of the backward pass, None if there is none or it calls a function of the user's."""
    node, start = next((row for row in work if BACKWARD.match(t.name(row))), None), t.trace.events.start
    inside = [FRAME.match(t.name(row)) for row in frames if node is not None and start[row] >= start[node]]
    return None if any(match and is_own_file(INSTALLED.sub("", match["file"])) for match in inside) else node


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
    if where.file is not None:  # the profiler cuts folders off: the name that the sampler has, where one file is meant
        known = t.sampled_files.get(PurePosixPath(where.file).name, ())
        alike = [each for each in known if f"/{each}".endswith(f"/{where.file}")]
        where = replace(where, file=alike[0] if len(alike) == 1 else where.file)
    for call in calls:
        seen = _seen_during(t, call)
        if where.file is not None:
            seen = Counter({at: num for at, num in seen.items() if (at[0], at[2]) == (where.file, where.function)})
        for (file, line, function), num in seen.most_common(1):
            code = source_line(t, file, line)
            is_late = LOADER_NEXT.search(call[0]) and PASSES_ON.search(code or "")  # of the step before
            if num >= 0.8 * seen.total() and not is_late:  # the rest was read late, when the next line ran
                return replace(where, file=file, line=line, function=function, code=code)
    return where


def _recorded(t: Tables, row: int) -> Where:
    """Return what the frames around a row show."""
    events = t.trace.events
    ((work, frames),) = _open(t, int(events.thread[row]), events.start[row : row + 1])
    if _node_of_torch(t, work, frames) is not None:
        return Where()  # the backward pass is called from one line, whatever it computes
    return _shown(t, work, frames)


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


@lru_cache(maxsize=1024)  # all steps pass the same places
def _where(work: tuple[str, ...], frames: tuple[str, ...], num_open: int) -> Where:
    """Return the innermost frame of the user's own files, and the innermost of a library inside it.

    The outermost ``num_open`` frames were open as the recording began, with the line that ran then: that of all but the
    innermost of them, which still calls the next one. Where it is by now is not known.
    """
    op = next((name for name in work if not KERNEL_LAUNCH.match(name)), None)  # the launch itself is no place
    library: str | None = None
    for depth, text in enumerate(frames):
        match = FRAME.match(text)
        if match is None or not is_user_file(INSTALLED.sub("", match["file"])):
            continue  # no line, or of torch or the standard library
        line = int(match["line"]) if not num_open or depth != len(frames) - num_open else None
        place = Where(INSTALLED.sub("", match["file"]), line, match["function"], op, frames[:12])
        if is_own_file(match["file"]):
            return replace(place, library=library, caller=_caller(frames, depth))
        at_line = f":{line}" if line is not None else ""
        library = library or f"{place.file}{at_line} in {place.function}"
    if library is not None:
        return Where(op=op, stack=frames[:12], library=library, caller=_caller(frames, len(frames) - 1))
    return Where(op=op, stack=(*reversed(work), *frames)[:12])


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
    samples, seen, found = t.capture.samples, seen_during(t, during), list[tuple[Where, float]]()
    if samples is None:
        return found
    often, work = seen.most_common(50), t.work_layers.get(t.main)
    near = {
        (file, line): sum(num for at, num in often if at[0] == file and abs(at[1] - line) <= MAX_LINES_APART)
        for (file, line, _), _ in often
    }
    for place, count in sorted(often, key=lambda item: (-near[item[0][:2]], -item[1]))[:most]:
        at_place = (samples.place == samples.places.index(place)) & ~t.late_samples
        time = samples.time_ns[at_place] - t.trace.epoch_ns
        opened = work.at_each(time[contains(during, time)]) if work else []
        inner = (next((name for name in _names(t, rows) if not KERNEL_LAUNCH.match(name)), None) for rows in opened)
        op, _ = (*Counter(inner).most_common(1), (None, 0))[0]
        found.append((line_at(t, *place, op), count / seen.total()))
    return found


def seen_during(t: Tables, during: Intervals) -> Counter[tuple[str, int, str]]:
    """Return how often the sampler saw each of the user's lines while ``during`` lasted."""
    samples = t.capture.samples
    if samples is None or not len(during.start) or not t.trace.epoch_ns:
        return Counter()
    inside = contains(during, samples.time_ns - t.trace.epoch_ns) & (samples.place >= 0) & ~t.late_samples
    return Counter(samples.places[row] for row in samples.place[inside].tolist())
