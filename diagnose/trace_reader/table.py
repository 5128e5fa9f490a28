"""From rows in the file's order to the finished event table: sorted, without repetitions, tasks joined to launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Mask, Rows, read_only
from diagnose.model.events import Events, Kind, Note
from diagnose.model.intervals import among, grouped
from diagnose.trace_reader.fields import printable
from diagnose.trace_reader.plausibility import (
    bound_sizes,
    implausible_marks,
    implausible_times,
    leave_out_shapes,
    thread_note,
    without_thread,
)
from diagnose.trace_reader.rows import EventRows
from diagnose.trace_reader.schema import DEVICE_KINDS, GC_NAME, is_annotation, is_launch

__all__ = ["Table", "finish"]

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


@dataclass(frozen=True, slots=True)
class Table:
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
    columns["kind"] = _kinds(columns["kind"].view(np.uint8), columns["name"], names)
    _reorder(columns, _chronological(columns["start"], columns["end"], columns["kind"], columns["thread"]))
    notes = _leave_out(columns, names)
    if not len(columns["start"]):
        return None
    first_ns = int(columns["start"][0])
    columns["start"] -= first_ns
    columns["end"] -= first_ns
    twice = _repeated(columns)
    if twice.any():
        _reorder(columns, np.flatnonzero(~twice))
    lost = without_thread(columns)
    if len(lost):
        columns["thread"][lost] = rows.fields.threads.of_unknown()
        notes = (*notes, thread_note(len(lost)))
    _take_external_ids(columns, names)
    columns["cause"] = _find_causes(columns["kind"], columns["correlation"], columns["name"], names)
    columns["size"] = _sizes(columns)
    bound_sizes(columns)
    notes += leave_out_shapes(columns, names)
    _narrow_ids(columns)
    return Table(Events(**read_only(columns)), names, first_ns, int(twice.sum()), notes)


def _narrow_ids(columns: _Columns) -> None:
    """Let ids take four bytes where they fit: a trace has millions. Of memory events the columns hold bytes."""
    if (columns["kind"] == Kind.MEMORY).any():
        return
    for name in _IDS:
        ids = columns[name]
        if ids.strides != (0,) and ids.max(initial=0) <= _MAX_NARROW and ids.min(initial=0) >= -_MAX_NARROW:
            columns[name] = ids.astype(np.int32)


def _leave_out(columns: _Columns, names: Sequence[str]) -> tuple[Note, ...]:
    """Drop implausible rows; once a step mark is dropped, the times are checked again."""
    notes: tuple[Note, ...] = ()
    for implausible in (implausible_times, implausible_marks, implausible_times):
        if not len(columns["start"]):
            break
        left_out, found = implausible(columns, names)
        if left_out is not None:
            _reorder(columns, np.flatnonzero(~left_out))
        notes += found
    return notes


def _reorder(columns: _Columns, order: Rows) -> None:
    for name, column in columns.items():
        if column.strides == (0,):  # nothing recorded: the same everywhere
            columns[name] = column[: len(order)]
        else:
            columns[name] = column[order]


def _kinds(kind: npt.NDArray[np.uint8], name: npt.NDArray[np.int32], names: Sequence[str]) -> npt.NDArray[np.uint8]:
    annotation = np.fromiter(map(is_annotation, names), np.bool_, len(names))
    collector = np.fromiter((text == GC_NAME for text in names), np.bool_, len(names))
    kind[(kind == Kind.OP) & annotation[name]] = Kind.ANNOTATION
    kind[(kind == Kind.PYTHON) & collector[name]] = Kind.GC
    return kind


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
    place = -tied if _children_first(start, end, kind, thread) else tied
    order[ties] = tied[np.lexsort((place, kind[tied], _DEPTH[kind[tied]], -end[tied], start[tied]))]
    return order


def _children_first(start: Ints, end: Ints, kind: _Kinds, thread: npt.NDArray[np.int16]) -> bool:
    """Return whether the file lists operators as they end (exporters of 2021) and not as they begin."""
    ops = np.flatnonzero(kind == Kind.OP)
    here, there = ops[:-1], ops[1:]
    together = thread[here] == thread[there]
    here, there = here[together], there[together]
    encloses = (start[there] < start[here]) & (end[there] >= end[here])
    enclosed = (start[there] > start[here]) & (end[there] <= end[here])
    return int(encloses.sum()) > int(enclosed.sum())


def _repeated(columns: Mapping[str, npt.NDArray[Any]]) -> Mask:
    """Mark rows that the file has twice: the same event with the same correlation id at the same time.

    Events without an id count only where the file shows that it repeats events: two short operators of the
    same name may well fall into the same microsecond.
    """
    twice = np.zeros(len(columns["start"]), np.bool_)
    candidates = _same_times(columns["start"], columns["end"])
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


def _same_times(start: Ints, end: Ints) -> Rows:
    same = (start[1:] == start[:-1]) & (end[1:] == end[:-1])
    return np.flatnonzero(np.r_[False, same] | np.r_[same, False])


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
    calls = _one_call_an_id(calls, correlation, name, names)
    ids = correlation[calls]
    at = np.minimum(np.searchsorted(ids, correlation[tasks]), len(ids) - 1)
    causes[tasks] = np.where(ids[at] == correlation[tasks], calls[at], -1)
    return causes


def _one_call_an_id(calls: Rows, correlation: Ints, name: npt.NDArray[np.int32], names: Sequence[str]) -> Rows:
    """Return the calls sorted by id, the one to prefer for each."""
    calls = calls[np.argsort(correlation[calls], kind="stable")]
    ids = correlation[calls]
    if (ids[1:] != ids[:-1]).all():
        return calls
    launching = np.fromiter(map(is_launch, names), np.bool_, len(names))
    calls = calls[np.lexsort((~launching[name[calls]], ids))]
    ids = correlation[calls]
    return calls[np.r_[True, ids[1:] != ids[:-1]]]
