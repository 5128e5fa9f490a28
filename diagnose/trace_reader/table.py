"""From rows in the file's order to the finished event table: sorted, without repetitions, tasks joined to launches.

This is the last stage of reading. After it (tests check it of all that they read):

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
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Mask, Rows, read_only
from diagnose.model.events import Events, Kind, Note, step_number
from diagnose.model.intervals import among, distinct, grouped
from diagnose.model.shapes import MAX_ELEMENTS, num_elements
from diagnose.trace_reader.fields import num_events, printable, shortened
from diagnose.trace_reader.rows import UNKNOWN_NS, EventRows
from diagnose.trace_reader.schema import DEVICE_KINDS, GC_NAME, is_annotation, is_launch

_Parsed = Mapping[str, npt.NDArray[Any]]

# torch.distributed ends a wait after 30 minutes unless configured otherwise; nothing recorded waits longer.
MAX_SILENCE_NS = 30 * 60 * 10**9
MAX_MOVED_BYTES = 2**50
ON_HOST, _MAY_MARK = np.zeros(len(Kind), np.bool_), np.zeros(len(Kind), np.bool_)
ON_HOST[[Kind.OP, Kind.ANNOTATION, Kind.PYTHON, Kind.RUNTIME, Kind.MEMORY, Kind.GC]] = True
_MAY_MARK[[Kind.OP, Kind.ANNOTATION]] = True
_NUM_NAMED = 3
_ONE_SHAPE, _SIDE = re.compile(r"[^\[\]]+"), re.compile(r"\d+")
_MAX_DIGITS = len(str(MAX_ELEMENTS))  # which also bounds how long a number takes to be read


def implausible_times(columns: _Parsed, names: Sequence[str]) -> tuple[Mask | None, tuple[Note, ...]]:
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
        edges = first + np.flatnonzero(np.diff(start[first:]) > MAX_SILENCE_NS) + 1
        begins, stops = np.append(first, edges), np.append(edges, len(start))
        largest = int((stops - begins).argmax())
        begin, stop = int(begins[largest]), int(stops[largest])
        apart[begin:stop] = end[begin:stop] > start[stop - 1] + MAX_SILENCE_NS
    notes: tuple[Note, ...] = ()
    if count := int(unknown.sum()):
        notes = (Note(f"Left out, since their time is missing, no number or out of range: {num_events(count)}."),)
    if count := int(apart.sum()):
        named = Counter(names[n] for n in columns["name"][apart].tolist()).most_common(_NUM_NAMED)
        listed = ", ".join(f"'{shortened(name)}'" for name, _ in named)
        notes += (
            Note(
                f"Left out, since they start or end more than 30 minutes away from all others: {num_events(count)} "
                f"({listed}{', …' if len(named) == _NUM_NAMED else ''})."
            ),
        )
    return unknown | apart, notes


def implausible_marks(columns: _Parsed, names: Sequence[str]) -> tuple[Mask | None, tuple[Note, ...]]:
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
        common = (
            (min(mark[1], end) - max(mark[0], begin), end - begin) for begin, end in kept[max(at - 1, 0) : at + 1]
        )
        if not any(2 * both >= min(mark[1] - mark[0], other) for both, other in common):
            insort(kept, mark)
            chosen[i] = True
    return chosen


def bound_sizes(columns: _Parsed) -> None:
    """Put -1, for unknown, in the place of sizes that no memory has."""
    of_memory = columns["kind"] == Kind.MEMORY
    for name in ("size", "sequence", "awaits"):
        column = columns[name]
        if column.strides != (0,) and (column.max() > MAX_MOVED_BYTES or column.min() < -MAX_MOVED_BYTES):
            huge = (column > MAX_MOVED_BYTES) | (column < -MAX_MOVED_BYTES)
            column[huge if name == "size" else huge & of_memory] = -1


def leave_out_shapes(columns: _Parsed, names: Sequence[str]) -> tuple[Note, ...]:
    """Put -1, for not recorded, in the place of shapes of more elements than any memory holds."""
    shapes = columns["shapes"]
    if shapes.strides == (0,):
        return ()
    huge = [text for text in distinct(shapes[shapes >= 0]).tolist() if is_huge(names[text])]
    if not huge:
        return ()
    left_out = among(shapes, huge)
    shapes[left_out] = -1
    count = num_events(int(left_out.sum()))
    return (Note(f"Left out, since no memory holds tensors of such a size: the shapes of {count}."),)


def is_huge(text: str) -> bool:
    """Return whether the shapes of a list have ``MAX_ELEMENTS`` elements or more together."""
    if len(text) <= _MAX_DIGITS:
        return False
    shapes = [_SIDE.findall(shape) for shape in _ONE_SHAPE.findall(text)]
    if any(len(side) > _MAX_DIGITS for shape in shapes for side in shape):
        return True
    return sum(num_elements(map(int, shape)) for shape in shapes if shape) >= MAX_ELEMENTS


_Columns = dict[str, npt.NDArray[Any]]
_Kinds = npt.NDArray[np.uint8]

# Which kind encloses which where two rows have the same start and end.
_DEPTH = np.full(len(Kind), 2, np.uint8)
_DEPTH[Kind.ANNOTATION] = 0
_DEPTH[Kind.PYTHON] = 1
_DEPTH[[Kind.RUNTIME, Kind.SYNC]] = 3

_IDENTITY = ("start", "end", "kind", "name", "thread", "device", "stream", "correlation")
_IDS = ("correlation", "sequence", "awaits")
_MAX_NARROW = np.iinfo(np.int32).max


class Table(NamedTuple):
    """The events, and what had to be done to get them."""

    events: Events
    names: Sequence[str]
    first_ns: int  # time zero on the file's own clock
    num_repeated: int  # rows dropped because the file has them twice
    notes: tuple[Note, ...]  # what was left out or replaced because it cannot be


def finish(rows: EventRows) -> Table | None:
    """Sort, name kinds, drop what is repeated or implausible, join tasks to launches; ``rows`` is used up.

    None where no event has a plausible time.
    """
    names = tuple(map(printable, rows.fields.names))
    columns = {name: column.finish(rows.count) for name, column in rows.columns.items()}
    kind = columns["kind"] = columns["kind"].view(np.uint8)
    annotation = np.fromiter(map(is_annotation, names), np.bool_, len(names))
    collector = np.fromiter((text == GC_NAME for text in names), np.bool_, len(names))
    kind[(kind == Kind.OP) & annotation[columns["name"]]] = Kind.ANNOTATION
    kind[(kind == Kind.PYTHON) & collector[columns["name"]]] = Kind.GC
    _reorder(columns, _chronological(columns["start"], columns["end"], columns["kind"], columns["thread"]))
    notes: tuple[Note, ...] = ()
    for implausible in (implausible_times, implausible_marks, implausible_times):  # without some marks, once more
        if not len(columns["start"]):
            break
        left_out, found = implausible(columns, names)
        if left_out is not None:
            _reorder(columns, np.flatnonzero(~left_out))
        notes += found
    if not len(columns["start"]):
        return None
    first_ns = int(columns["start"][0])
    columns["start"] -= first_ns
    columns["end"] -= first_ns
    twice = _repeated(columns)
    if twice.any():
        _reorder(columns, np.flatnonzero(~twice))
    lost = (columns["thread"] < 0) & ON_HOST[columns["kind"]]
    if count := int(lost.sum()):
        columns["thread"][lost] = rows.fields.threads.of_unknown()
        notes += (Note(f"Without a thread in the file, and taken to be on one: {num_events(count)} of the host."),)
    _take_external_ids(columns, names)
    columns["cause"] = _find_causes(columns["kind"], columns["correlation"], columns["name"], names)
    columns["size"] = _sizes(columns)
    bound_sizes(columns)
    notes += leave_out_shapes(columns, names)
    if not (columns["kind"] == Kind.MEMORY).any():  # of memory events the columns hold bytes
        for name in _IDS:  # four bytes where they fit: a trace has millions
            ids = columns[name]
            if ids.strides != (0,) and ids.max(initial=0) <= _MAX_NARROW and ids.min(initial=0) >= -_MAX_NARROW:
                columns[name] = ids.astype(np.int32)
    return Table(Events(**read_only(columns)), names, first_ns, int(twice.sum()), notes)


def _reorder(columns: _Columns, order: Rows) -> None:
    for name, column in columns.items():
        if column.strides == (0,):  # nothing recorded: the same everywhere
            columns[name] = column[: len(order)]
        else:
            columns[name] = column[order]


def _sizes(columns: _Columns) -> Ints:
    """Return the sizes; AMD's exporter records a copy's size on the call that starts it."""
    size, kind, cause = columns["size"], columns["kind"], columns["cause"]
    if size.strides == (0,):
        return size
    copies = np.flatnonzero(among(kind, (Kind.MEMCPY, Kind.MEMSET)) & (size < 0) & (cause >= 0))
    size[copies] = size[cause[copies]]
    size[kind == Kind.RUNTIME] = -1
    return size


def _chronological(start: Ints, end: Ints, kind: _Kinds, thread: npt.NDArray[np.int16]) -> Rows:
    """Return the rows sorted by start, ties by the later end, then outer kinds first, then by nesting.

    Rows of one kind stand in the file's order; how those of several are mixed depends on the blocks they were read in.
    """
    order = np.argsort(start, kind="stable")
    sorted_start = start[order]
    same = sorted_start[1:] == sorted_start[:-1]
    if not same.any():
        return order
    ties = np.flatnonzero(np.r_[False, same] | np.r_[same, False])
    tied = order[ties]
    # Whether the file lists operators as they end (exporters of 2021) and not as they begin.
    ops = np.flatnonzero(kind == Kind.OP)
    here, there = ops[:-1], ops[1:]
    together = thread[here] == thread[there]
    here, there = here[together], there[together]
    encloses = (start[there] < start[here]) & (end[there] >= end[here])
    enclosed = (start[there] > start[here]) & (end[there] <= end[here])
    children_first = int(encloses.sum()) > int(enclosed.sum())
    place = -tied if children_first else tied
    order[ties] = tied[np.lexsort((place, kind[tied], _DEPTH[kind[tied]], -end[tied], start[tied]))]
    return order


def _repeated(columns: Mapping[str, npt.NDArray[Any]]) -> Mask:
    """Mark rows that the file has twice: the same event with the same correlation id at the same time.

    Events without an id count only where the file shows that it repeats events: two short operators of the
    same name may well fall into the same microsecond.
    """
    twice = np.zeros(len(columns["start"]), np.bool_)
    start = columns["start"]
    end = columns["end"]
    same = (start[1:] == start[:-1]) & (end[1:] == end[:-1])
    candidates = np.flatnonzero(np.r_[False, same] | np.r_[same, False])
    if not len(candidates):
        return twice
    keys = np.stack([columns[name][candidates].astype(np.int64) for name in _IDENTITY], axis=1)
    order = np.lexsort((candidates, *keys.T[::-1]))
    again = np.r_[False, (keys[order][1:] == keys[order][:-1]).all(axis=1)]
    copies = candidates[order[again]]
    copies = copies[columns["kind"][copies] != Kind.MEMORY]
    if (columns["correlation"][copies] > 0).any():
        twice[copies] = True
    return twice


def _take_external_ids(columns: _Columns, names: Sequence[str]) -> None:
    """Let equal external ids join calls and tasks in a file without any correlation id.

    Some exporters write one external id for each call there; others write the operator's, which several launches of it
    share: such an id joins nothing.
    """
    external, kind = columns.pop("external"), columns["kind"]
    calls = np.flatnonzero((kind == Kind.RUNTIME) & (external > 0))
    tasks = np.flatnonzero(among(kind, DEVICE_KINDS) & (external > 0))
    if not len(calls) or not len(tasks) or (columns["correlation"][kind == Kind.RUNTIME] > 0).any():
        return
    launching = np.fromiter(map(is_launch, names), np.bool_, len(names))[columns["name"][calls]]
    ids, _, of = grouped(external[calls[launching]])
    rows = np.concatenate([calls[launching], tasks])
    rows = rows[among(external[rows], ids[np.bincount(of) == 1])]
    columns["correlation"] = columns["correlation"].copy()  # where nothing was recorded it cannot be written to
    columns["correlation"][rows] = external[rows]


def _find_causes(
    kind: npt.NDArray[np.uint8], correlation: Ints, name: npt.NDArray[np.int32], names: Sequence[str]
) -> npt.NDArray[np.int32]:
    """Return for each row the row of the runtime call that queued it, -1 where there is none.

    An id of 0 or below means that nothing was recorded. Where several calls share an id the one that launches
    counts, and among those the first.
    """
    causes = np.full(len(kind), -1, np.int32)
    known = correlation > 0
    calls = np.flatnonzero((kind == Kind.RUNTIME) & known)
    tasks = np.flatnonzero(among(kind, DEVICE_KINDS) & known)
    if not len(calls) or not len(tasks):
        return causes
    calls = calls[np.argsort(correlation[calls], kind="stable")]
    ids = correlation[calls]
    if (ids[1:] == ids[:-1]).any():
        launching = np.fromiter(map(is_launch, names), np.bool_, len(names))
        calls = calls[np.lexsort((~launching[name[calls]], ids))]
        calls = calls[np.r_[True, ids[1:] != ids[:-1]]]
        ids = correlation[calls]
    at = np.minimum(np.searchsorted(ids, correlation[tasks]), len(ids) - 1)
    causes[tasks] = np.where(ids[at] == correlation[tasks], calls[at], -1)
    return causes
