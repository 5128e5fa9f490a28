"""The last stage of reading: what tables and rules may rely on, whatever stood in the file.

After it, and ``check_trace`` verifies it:

- every event has a start and an end, start <= end, and the first starts at zero; rows are sorted by start;
- within 30 minutes of every start the next event starts, and every event ends within 30 minutes of the last start:
  there is no event apart from the rest, and no span longer than the recording and these 30 minutes;
- every event of the host but the profiler's own (OVERHEAD) is on a thread of ``Trace.threads``;
- rows of names, threads and causes are in range; a cause is a RUNTIME call with the task's correlation id;
- sizes are at most 1 PB, and the shapes of an operator have fewer elements than that has bytes;
- a step mark has a length and a number that fits into int64, and no two marks of a thread overlap by half or more;
- names hold neither control characters (but tab and line feed) nor halves of surrogate pairs;
- rank, number of ranks and epoch are not negative, and epoch and times add up within int64.

What does not fit is left out or replaced, and is a note of ``Trace.trust``. Durations that are negative or no number
have become zero before, and starts that are none UNKNOWN_NS (``diagnose.trace_reader.rows``).
"""

from __future__ import annotations

import re
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Mask, Rows
from diagnose.model.events import Kind, Note, Trace, step_number
from diagnose.model.intervals import among, distinct
from diagnose.model.shapes import MAX_ELEMENTS, num_elements
from diagnose.trace_reader.fields import num_events, printable, shortened
from diagnose.trace_reader.rows import UNKNOWN_NS
from diagnose.trace_reader.schema import DEVICE_KINDS

__all__ = [
    "MAX_BYTES",
    "MAX_SILENCE_NS",
    "bound_sizes",
    "check_trace",
    "implausible_marks",
    "implausible_times",
    "leave_out_shapes",
    "thread_note",
    "without_thread",
]

_Columns = Mapping[str, npt.NDArray[Any]]

# torch.distributed ends a wait after 30 minutes unless configured otherwise; nothing recorded waits longer.
MAX_SILENCE_NS = 30 * 60 * 10**9
MAX_BYTES = 2**50
_ON_HOST, _MAY_MARK = np.zeros(len(Kind), np.bool_), np.zeros(len(Kind), np.bool_)
_ON_HOST[[Kind.OP, Kind.ANNOTATION, Kind.PYTHON, Kind.RUNTIME, Kind.MEMORY, Kind.GC]] = True
_MAY_MARK[[Kind.OP, Kind.ANNOTATION]] = True
_NUM_NAMED = 3
_ONE_SHAPE, _SIDE = re.compile(r"[^\[\]]+"), re.compile(r"\d+")
_MAX_DIGITS = len(str(MAX_ELEMENTS))  # which also bounds how long a number takes to be read


def implausible_times(columns: _Columns, names: Sequence[str]) -> tuple[Mask | None, tuple[Note, ...]]:
    """Mark events without a time, apart from the rest, or lasting beyond it; columns are sorted by start.

    The rest is the largest group of events without a silence of half an hour. None stands for no event at all.
    """
    start, end = columns["start"], columns["end"]
    if start[0] != UNKNOWN_NS and end.max() - start[0] <= MAX_SILENCE_NS:
        return None, ()
    unknown = start == UNKNOWN_NS
    apart = ~unknown
    first = int(np.count_nonzero(unknown))
    if first < len(start):
        begin, stop = _largest_group(start[first:])
        begin, stop = first + begin, first + stop
        apart[begin:stop] = end[begin:stop] > start[stop - 1] + MAX_SILENCE_NS
    notes: tuple[Note, ...] = ()
    if count := int(unknown.sum()):
        notes = (Note(f"Left out, since their time is missing, no number or out of range: {num_events(count)}."),)
    return unknown | apart, (*notes, *_of_apart(columns, np.flatnonzero(apart), names))


def _largest_group(start: Ints) -> tuple[int, int]:
    """Return the first and the last row, exclusive, of the largest group without a long silence in it."""
    edges = np.flatnonzero(np.diff(start) > MAX_SILENCE_NS) + 1
    begin, stop = np.append(0, edges), np.append(edges, len(start))
    largest = int((stop - begin).argmax())
    return int(begin[largest]), int(stop[largest])


def _of_apart(columns: _Columns, rows: Rows, names: Sequence[str]) -> tuple[Note, ...]:
    if not len(rows):
        return ()
    named = Counter(names[n] for n in columns["name"][rows].tolist()).most_common(_NUM_NAMED)
    listed = ", ".join(f"'{shortened(name)}'" for name, _ in named)
    return (
        Note(
            f"Left out, since they start or end more than 30 minutes away from all others: {num_events(len(rows))} "
            f"({listed}{', …' if len(named) == _NUM_NAMED else ''})."
        ),
    )


def implausible_marks(columns: _Columns, names: Sequence[str]) -> tuple[Mask | None, tuple[Note, ...]]:
    """Mark step marks that cannot be steps: without a length or a number, or in the place of a better one."""
    numbers = {row: step_number(name) for row, name in enumerate(names) if name.startswith("ProfilerStep#")}
    if not numbers:
        return None, ()
    names_mark = np.zeros(len(names), np.bool_)
    names_mark[list(numbers)] = True
    marks = np.flatnonzero(names_mark[columns["name"]] & _MAY_MARK[columns["kind"]])
    start, end = columns["start"][marks], columns["end"][marks]
    known = np.array([numbers[n] is not None for n in columns["name"][marks].tolist()], np.bool_)
    good = known & (end > start)
    thread = columns["thread"][marks]
    for each in distinct(thread[good]).tolist():
        mine = np.flatnonzero(good & (thread == each))
        good[mine] = _apart(start[mine], end[mine])
    if good.all():
        return None, ()
    left_out = np.zeros(len(columns["start"]), np.bool_)
    left_out[marks[~good]] = True
    count = len(marks) - int(good.sum())
    listed = "1 step mark" if count == 1 else f"{count:,} step marks"
    return left_out, (Note(f"Left out, since no step can begin or end there: {listed}."),)


def _apart(start: Ints, end: Ints) -> Mask:
    """Choose marks that overlap by less than half, those of usual length first; marks are sorted by start."""
    length = end - start
    if (end[:-1] <= start[1:]).all():
        return np.ones(len(start), np.bool_)
    chosen = np.zeros(len(start), np.bool_)
    kept: list[tuple[int, int]] = []
    for i in np.argsort(np.abs(length - int(np.median(length))), kind="stable").tolist():
        mark = int(start[i]), int(end[i])
        at = bisect_right(kept, mark)
        if not any(_overlap_by_half(mark, other) for other in kept[max(at - 1, 0) : at + 1]):
            insort(kept, mark)
            chosen[i] = True
    return chosen


def _overlap_by_half(one: tuple[int, int], other: tuple[int, int]) -> bool:
    common = min(one[1], other[1]) - max(one[0], other[0])
    return 2 * common >= min(one[1] - one[0], other[1] - other[0])


def without_thread(columns: _Columns) -> Rows:
    """Return the rows of host events that are on no thread."""
    return np.flatnonzero((columns["thread"] < 0) & _ON_HOST[columns["kind"]])


def thread_note(count: int) -> Note:
    """Return the sentence about host events without a thread."""
    return Note(f"Without a thread in the file, and taken to be on one: {num_events(count)} of the host.")


def bound_sizes(columns: _Columns) -> None:
    """Put -1, for unknown, in the place of sizes that no memory has."""
    of_memory = columns["kind"] == Kind.MEMORY
    for name in ("size", "sequence", "awaits"):
        column = columns[name]
        if column.strides != (0,) and (column.max() > MAX_BYTES or column.min() < -MAX_BYTES):
            huge = (column > MAX_BYTES) | (column < -MAX_BYTES)
            column[huge if name == "size" else huge & of_memory] = -1


def leave_out_shapes(columns: _Columns, names: Sequence[str]) -> tuple[Note, ...]:
    """Put -1, for not recorded, in the place of shapes of more elements than any memory holds."""
    shapes = columns["shapes"]
    if shapes.strides == (0,):
        return ()
    huge = [text for text in distinct(shapes[shapes >= 0]).tolist() if _is_huge(names[text])]
    if not huge:
        return ()
    left_out = among(shapes, huge)
    shapes[left_out] = -1
    count = num_events(int(left_out.sum()))
    return (Note(f"Left out, since no memory holds tensors of such a size: the shapes of {count}."),)


def _is_huge(text: str) -> bool:
    """Return whether the shapes of a list have ``MAX_ELEMENTS`` elements or more together."""
    if len(text) <= _MAX_DIGITS:
        return False
    shapes = [_SIDE.findall(shape) for shape in _ONE_SHAPE.findall(text)]
    if any(len(side) > _MAX_DIGITS for shape in shapes for side in shape):
        return True
    return sum(num_elements(map(int, shape)) for shape in shapes if shape) >= MAX_ELEMENTS


def check_trace(trace: Trace) -> None:
    """Verify what this module guarantees; tests call it on everything that was read.

    Raises:
        AssertionError: a guarantee is broken; the message holds all that are.
    """
    broken = list(_broken(trace))
    if broken:
        raise AssertionError("; ".join(broken))


def _broken(trace: Trace) -> Iterator[str]:
    e = trace.events
    num = len(e)
    if not num:
        yield "there is no event"
        return
    steady = e.start[1:] - e.start[:-1]
    marks, unfit = implausible_marks(
        {name: getattr(e, name) for name in ("start", "end", "kind", "name", "thread")}, trace.names
    )
    tasks = np.flatnonzero(e.cause >= 0)
    calls = e.cause[tasks]
    texts = (
        *trace.names,
        *(text for t in trace.threads for text in (t.pid, t.tid, t.name)),
        *(d.name for d in trace.devices),
    )
    promises = {
        "columns are as long as one another": len({len(getattr(e, name)) for name in type(e).__slots__}) == 1,
        "time begins at zero": int(e.start[0]) == 0,
        "rows are sorted": bool((steady >= 0).all()),
        "no event ends before it starts": bool((e.end >= e.start).all()),
        "no event starts apart": bool((steady <= MAX_SILENCE_NS).all()),
        "no event ends apart": int(e.end.max()) <= int(e.start[-1]) + MAX_SILENCE_NS,
        "kinds are known": int(e.kind.max()) < len(Kind),
        "host events have a thread": not ((e.thread < 0) & _ON_HOST[e.kind]).any(),
        "threads are in range": int(e.thread.max()) < len(trace.threads) and int(e.thread.min()) >= -1,
        "names are in range": int(e.name.min()) >= 0
        and all(_in_range(getattr(e, c), trace.names) for c in _TEXT_COLUMNS),
        "devices and streams are ids": int(e.device.min()) >= -1 and int(e.stream.min()) >= -1,
        "causes are calls": bool((calls < num).all()) and bool((e.kind[calls] == Kind.RUNTIME).all()),
        "causes are of tasks": bool(among(e.kind[tasks], DEVICE_KINDS).all()),
        "causes share the id": bool((e.correlation[calls] == e.correlation[tasks]).all()),
        "sizes are bounded": int(e.size.min()) >= -MAX_BYTES and int(e.size.max()) <= MAX_BYTES,
        "shapes are bounded": not any(
            _is_huge(trace.names[text]) for text in distinct(e.shapes[e.shapes >= 0]).tolist()
        ),
        "step marks are steps": marks is None and not unfit,
        "names can be shown": all(text == printable(text) for text in texts),
        "ranks are numbers": trace.rank >= 0 and trace.world_size >= 1,
        "the clock fits": trace.epoch_ns >= 0 and trace.epoch_ns + int(e.end.max()) < 2**63,
    }
    yield from (f"not so: {promise}" for promise, holds in promises.items() if not holds)


_TEXT_COLUMNS = ("name", "shapes", "types", "values", "detail")


def _in_range(rows: npt.NDArray[np.int32], names: Sequence[str]) -> bool:
    return int(rows.max()) < len(names) and int(rows.min()) >= -1
