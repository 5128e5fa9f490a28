"""From rows in the file's order to the finished event table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.model.events import Events, Ints, Kind, Note
from diagnose.trace_reader.causes import find_causes
from diagnose.trace_reader.intern import printable
from diagnose.trace_reader.kinds import GC_NAME, is_annotation
from diagnose.trace_reader.order import chronological, repeated
from diagnose.trace_reader.plausibility import (
    bound_sizes,
    implausible_marks,
    implausible_times,
    thread_note,
    without_thread,
)
from diagnose.trace_reader.rows import Rows

__all__ = ["Table", "finish"]

_Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Table:
    """The events, and what had to be done to get them."""

    events: Events
    names: Sequence[str]
    first_ns: int  # time zero on the file's own clock
    num_repeated: int  # rows dropped because the file has them twice
    notes: tuple[Note, ...]  # what was left out or replaced because it cannot be


def finish(rows: Rows) -> Table | None:
    """Sort, name kinds, drop what stands there twice or cannot be, join tasks to launches; ``rows`` is used up.

    None where no event has a plausible time.
    """
    names = tuple(map(printable, rows.fields.names))
    columns = {name: column.finish(rows.count) for name, column in rows.columns.items()}
    columns["kind"] = _kinds(columns["kind"].view(np.uint8), columns["name"], names)
    _reorder(columns, chronological(columns["start"], columns["end"], columns["kind"], columns["thread"]))
    notes = _leave_out(columns, names)
    if not len(columns["start"]):
        return None
    first_ns = int(columns["start"][0])
    columns["start"] -= first_ns
    columns["end"] -= first_ns
    twice = repeated(columns)
    if twice.any():
        _reorder(columns, np.flatnonzero(~twice))
    lost = without_thread(columns)
    if len(lost):
        columns["thread"][lost] = rows.fields.threads.of_unknown()
        notes = (*notes, thread_note(len(lost)))
    columns["cause"] = find_causes(columns["kind"], columns["correlation"], columns["name"], names)
    columns["size"] = _sizes(columns)
    bound_sizes(columns)
    return Table(Events(**columns), names, first_ns, int(twice.sum()), notes)


def _leave_out(columns: _Columns, names: Sequence[str]) -> tuple[Note, ...]:
    """Drop what cannot be; without a step mark that cannot, other events may lie apart."""
    notes: tuple[Note, ...] = ()
    for implausible in (implausible_times, implausible_marks, implausible_times):
        if not len(columns["start"]):
            break
        left_out, found = implausible(columns, names)
        if left_out is not None:
            _reorder(columns, np.flatnonzero(~left_out))
        notes += found
    return notes


def _reorder(columns: _Columns, order: npt.NDArray[np.intp]) -> None:
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
    """Return the sizes; AMD's exporter says how large a copy is on the call that starts it."""
    size, kind, cause = columns["size"], columns["kind"], columns["cause"]
    if size.strides == (0,):
        return size
    copies = np.flatnonzero(np.isin(kind, (Kind.MEMCPY, Kind.MEMSET)) & (size < 0) & (cause >= 0))
    size[copies] = size[cause[copies]]
    size[kind == Kind.RUNTIME] = -1
    return size
