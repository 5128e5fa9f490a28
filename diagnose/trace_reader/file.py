"""Reads one trace file into a Trace, and states what of the file could not be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from diagnose.errors import InputError, NotATraceError
from diagnose.model.events import Note, Trace
from diagnose.model.serialization import without_collector
from diagnose.trace_reader.events import Ending, Window, read_events
from diagnose.trace_reader.fields import num_events, shortened
from diagnose.trace_reader.parts import (
    MAX_TAIL_BYTES,
    Envelope,
    devices,
    epoch_ns,
    rank_of,
    read_head,
    read_keys,
    read_parts,
    small_values,
    world_size_of,
)
from diagnose.trace_reader.rows import EventRows
from diagnose.trace_reader.schema import LEFT_OUT
from diagnose.trace_reader.source import STANDARD_INPUT, open_source
from diagnose.trace_reader.stored import Piped, Stored
from diagnose.trace_reader.table import finish

__all__ = ["read_trace"]

_KINETO_KEYS = frozenset({"schemaVersion", "deviceProperties", "computeProperties", "baseTimeNanoseconds"})
_MAX_LISTED = 5  # categories that are named


def read_trace(
    path: str | os.PathLike[str] | Stored | Piped, processes: int = 1, meanwhile: Callable[[], object] | None = None
) -> Trace:
    """Read a trace of torch.profiler, JSON, gzip or zstd, of any release; a truncated one up to its cut.

    ``-`` is standard input. Several ``processes`` read a large file that is not compressed, which gives the same;
    ``meanwhile`` is done while the others read, and left out where there are none.
    Memory is bounded by the columns (at most 85 bytes an event), not by the size of the file.
    What holds for every trace is described in ``diagnose.trace_reader.table``.

    Raises:
        InputError: the file cannot be read or holds no events.
        NotATraceError: it is something else than a trace of torch.profiler.
    """
    name = _name(path)
    try:
        return _read(path, name, processes, meanwhile)
    except MemoryError:
        raise InputError(
            f"{name} needs more memory than there is. Record fewer steps, or read it on a machine with more."
        ) from None


def _name(path: str | os.PathLike[str] | Stored | Piped) -> str:
    if isinstance(path, (Stored, Piped)):
        return path.name
    return "standard input" if os.fspath(path) == STANDARD_INPUT else os.fspath(path)


def _read(
    path: str | os.PathLike[str] | Stored | Piped,
    name: str,
    processes: int,
    meanwhile: Callable[[], object] | None,
) -> Trace:
    with without_collector():
        read = _by_processes(path, name, processes, meanwhile) or _alone(path, name)
    rows, ending, around, fault = read.rows, read.ending, read.around, read.fault
    if not rows.count:
        raise _error_without_events(name, rows, ending, around)
    trust = _notes(rows, ending, fault, around)
    table = finish(rows)
    if table is None:
        raise _error_without_times(name, rows)
    # The sentence about events that the file has twice, if it has any.
    count = table.num_repeated
    repeated_note = (Note(f"Counted once, but twice in the file: {num_events(count)}."),) if count else ()
    trust += table.notes + repeated_note
    keys = around.keys
    return Trace(
        events=table.events,
        names=table.names,
        threads=rows.fields.threads.threads(),
        devices=devices(keys),
        rank=rank_of(keys, name),
        world_size=world_size_of(keys),
        epoch_ns=epoch_ns(keys, table.first_ns),
        path=name,
        raw_bytes=read.raw_bytes,
        cut=around.is_cut,
        metadata=small_values(keys),
        trust=trust,
    )


class _ReadFile(NamedTuple):
    """A file, read to its end or to its cut."""

    rows: EventRows
    ending: Ending
    around: Envelope
    fault: str  # why reading ended before the end of the file
    raw_bytes: int


def _alone(path: str | os.PathLike[str] | Stored | Piped, name: str) -> _ReadFile:
    with open_source(path) as source:
        window = Window(source)
        head = read_head(window, source, name)
        rows = EventRows()
        ending = read_events(window, rows)
        rest = window.read_rest(MAX_TAIL_BYTES) if ending.complete else b""
    return _ReadFile(rows, ending, _read_keys(head, ending, rest), ending.fault or source.fault, source.raw_bytes)


def _by_processes(
    path: str | os.PathLike[str] | Stored | Piped,
    name: str,
    processes: int,
    meanwhile: Callable[[], object] | None,
) -> _ReadFile | None:
    if processes < 2 or not isinstance(path, Stored):
        return None
    read = read_parts(path, name, processes, meanwhile)
    if read is None:
        return None
    return _ReadFile(read.rows, read.ending, _read_keys(read.head, read.ending, read.rest), "", read.raw_bytes)


def _read_keys(head: bytes, ending: Ending, rest: bytes) -> Envelope:
    if not ending.complete:
        return Envelope(read_keys(head, b"}").keys, is_cut=True, is_unread=False)
    return read_keys(head, ending.text + rest)


def _notes(rows: EventRows, ending: Ending, fault: str, around: Envelope) -> tuple[Note, ...]:
    """Return one sentence for everything that the file held and the table does not."""
    found = []
    if around.is_cut:
        why = f" ({fault})" if fault else ""
        found.append(f"The file is cut off{why}: {num_events(rows.num_events)} read, the end of the trace is missing.")
    elif fault:
        found.append(f"The file is complete, but {fault}: parts of it may be wrong.")
    if around.is_unread:
        found.append("What follows the list of events is not JSON, or a second list, and was left out.")
    if ending.num_skipped:
        found.append(f"Could not be parsed and left out: {num_events(ending.num_skipped)}.")
    if rows.num_without_length:
        found.append(
            f"With a duration that is negative or no number, taken as zero: {num_events(rows.num_without_length)}."
        )
    found += [f"Left out: {num_events(count)} of the {what}." for what, count in _left_out(rows)]
    return tuple(Note(text) for text in found)


def _error_without_events(name: str, rows: EventRows, ending: Ending, around: Envelope) -> InputError:
    """Return the error for a file in which no event could be used."""
    if ending.fault:
        return InputError(f"{name} holds no event that can be used: {ending.fault}. Copy or record the trace again.")
    if around.is_cut and rows.categories <= LEFT_OUT:
        return InputError(f"{name} ends before its first event. Copy or record the trace again.")
    if not rows.num_events:
        return InputError(f"{name} holds no events. Let the profiler record at least one step.")
    if _KINETO_KEYS.isdisjoint(around.keys) and "Trace" not in rows.categories:
        return NotATraceError(
            f"{name} is not a trace of torch.profiler: none of its {num_events(rows.num_events)} is of a category "
            "that it writes. Name a file that torch.profiler exported."
        )
    return InputError(
        f"{name} holds no operator, runtime call or device task among its {num_events(rows.num_events)}. "
        "Let the profiler record at least one step."
    )


def _left_out(rows: EventRows) -> Iterator[tuple[str, int]]:
    for what, counts in (("category", rows.left_out), ("phase", rows.phases)):
        most = sorted((+counts).most_common(_MAX_LISTED))
        yield from ((f"{what} '{shortened(name)}'", count) for name, count in most)
        if len(+counts) > _MAX_LISTED:
            yield f"{len(+counts) - _MAX_LISTED:,} other kinds of {what}", counts.total() - sum(n for _, n in most)


def _error_without_times(name: str, rows: EventRows) -> InputError:
    """Return the error for a file in which no event has a plausible time."""
    return InputError(
        f"{name} has no event with a plausible time among its {num_events(rows.num_events)}. Record the trace again."
    )
