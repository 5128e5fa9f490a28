"""Reads one trace file into a Trace, and states what of the file could not be read."""

from __future__ import annotations

import os
from collections.abc import Callable

from diagnose.errors import InputError, NotATraceError
from diagnose.model.events import Note, Trace
from diagnose.model.serialization import without_collector
from diagnose.trace_reader.events import Ending, Window, read_events
from diagnose.trace_reader.fields import num_events, shortened
from diagnose.trace_reader.parts import (
    MAX_TAIL_BYTES,
    Envelope,
    ReadFile,
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
from diagnose.trace_reader.stored import Piped, Stored, is_database, is_url
from diagnose.trace_reader.table import finish

_KINETO_KEYS = frozenset({"schemaVersion", "deviceProperties", "computeProperties", "baseTimeNanoseconds"})
_MAX_LISTED = 5  # categories that are named


def read_trace(
    path: str | os.PathLike[str] | Stored | Piped, processes: int = 1, meanwhile: Callable[[], object] | None = None
) -> Trace:
    """Read a trace of torch.profiler, JSON, gzip or zstd, of any release; a truncated one up to its cut.

    Profiles that other tools write as SQLite are read too (``diagnose.trace_reader.databases``).

    ``-`` is standard input. Several ``processes`` read a large file that is not compressed, which gives the same;
    ``meanwhile`` is done while the others read, and left out where there are none.
    Memory is bounded by the columns (at most 85 bytes an event), not by the size of the file.
    What holds for every trace is described in ``diagnose.trace_reader.table``.

    Raises:
        InputError: the file cannot be read or holds no events.
        NotATraceError: it is something else than a trace of torch.profiler.
    """
    if isinstance(path, (Stored, Piped)):
        name = path.name
    else:
        name = "standard input" if os.fspath(path) == STANDARD_INPUT else os.fspath(path)
    process = path.process if isinstance(path, Stored) else 0
    file = path.path if isinstance(path, Stored) else name
    try:
        if not isinstance(path, Piped) and not is_url(file) and is_database(file):
            from diagnose.trace_reader.databases import read_database

            return read_database(file, name, process)
        return _read(path, name, processes, meanwhile)
    except MemoryError:
        raise InputError(
            f"{name} needs more memory than there is. Record fewer steps, or read it on a machine with more."
        ) from None


def _read(
    path: str | os.PathLike[str] | Stored | Piped,
    name: str,
    processes: int,
    meanwhile: Callable[[], object] | None,
) -> Trace:
    with without_collector():
        read = read_parts(path, name, processes, meanwhile) if isinstance(path, Stored) and processes > 1 else None
        if read is None:
            with open_source(path) as source:
                window, rows = Window(source), EventRows()
                head = read_head(window, source, name)
                ending = read_events(window, rows)
                rest = window.read_rest(MAX_TAIL_BYTES) if ending.complete else b""
            read = ReadFile(head, rows, ending, rest, source.raw_bytes, ending.fault or source.fault)
    rows, ending = read.rows, read.ending
    if ending.complete:
        around = read_keys(read.head, ending.text + read.rest)
    else:
        around = Envelope(read_keys(read.head, b"}").keys, is_cut=True, is_unread=False)
    if not rows.count:
        raise _error_without_events(name, rows, ending, around)
    trust = _notes(rows, ending, read.fault, around)
    table = finish(rows)
    if table is None:
        raise InputError(
            f"{name} has no event with a plausible time among its {num_events(rows.num_events)}. Record the trace "
            "again."
        )
    trust += table.notes
    if table.num_repeated:
        trust += (Note(f"Counted once, but twice in the file: {num_events(table.num_repeated)}."),)
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
    for what, counts in (("category", rows.left_out), ("phase", rows.phases)):
        most = sorted((+counts).most_common(_MAX_LISTED))
        found += [f"Left out: {num_events(count)} of the {what} '{shortened(name)}'." for name, count in most]
        if len(+counts) > _MAX_LISTED:
            others = counts.total() - sum(count for _, count in most)
            found.append(f"Left out: {num_events(others)} of the {len(+counts) - _MAX_LISTED:,} other kinds of {what}.")
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
