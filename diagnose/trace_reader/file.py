"""One trace file into a Trace."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from diagnose.errors import InputError
from diagnose.model.events import Trace
from diagnose.trace_reader import origin
from diagnose.trace_reader.blocks import Window
from diagnose.trace_reader.envelope import MAX_TAIL_BYTES, Envelope, Keys, read_head, read_keys
from diagnose.trace_reader.events import Ending, read_events
from diagnose.trace_reader.remarks import notes, repeated_note, without_events, without_times
from diagnose.trace_reader.rows import Rows
from diagnose.trace_reader.source import STANDARD_INPUT, open_source
from diagnose.trace_reader.table import Table, finish

__all__ = ["read_trace"]


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace of torch.profiler, JSON or gzip, of any release; a truncated one up to its cut.

    ``-`` is standard input. Memory is bounded by the columns (at most 85 bytes an event), not by the size of the file.
    What holds for every trace stands in ``diagnose.trace_reader.plausibility``.

    Raises:
        InputError: the file cannot be read or holds no events.
        NotATraceError: it is something else than a trace of torch.profiler.
    """
    name = "standard input" if os.fspath(path) == STANDARD_INPUT else os.fspath(path)
    try:
        return _read(path, name)
    except MemoryError:
        raise InputError(
            f"{name} needs more memory than there is. Record fewer steps, or read it on a machine with more."
        ) from None


def _read(path: str | os.PathLike[str], name: str) -> Trace:
    with open_source(path) as source, _without_collector():
        window = Window(source)
        head = read_head(window, source, name)
        rows = Rows()
        ending = read_events(window, rows)
        around = _read_keys(head, ending, window)
    if not rows.count:
        raise without_events(name, rows, ending, around)
    fault = ending.fault or source.fault
    trust = notes(rows, ending, fault, around)
    table = finish(rows)
    if table is None:
        raise without_times(name, rows)
    trust += table.notes + repeated_note(table.num_repeated)
    trace = _assemble(name, around.keys, table, rows)
    return replace(trace, raw_bytes=source.raw_bytes, cut=around.is_cut, trust=trust)


def _read_keys(head: bytes, ending: Ending, window: Window) -> Envelope:
    if not ending.complete:
        return Envelope(read_keys(head, b"}").keys, is_cut=True, is_unread=False)
    return read_keys(head, ending.text + window.read_rest(MAX_TAIL_BYTES))


def _assemble(name: str, keys: Keys, table: Table, rows: Rows) -> Trace:
    return Trace(
        events=table.events,
        names=table.names,
        threads=rows.fields.threads.threads(),
        devices=origin.devices(keys),
        rank=origin.rank_of(keys, name),
        world_size=origin.world_size_of(keys),
        epoch_ns=origin.epoch_ns(keys, table.first_ns),
        path=name,
        metadata=origin.small_values(keys),
    )


@contextmanager
def _without_collector() -> Iterator[None]:
    """Keep Python's collector from walking millions of short-lived events, none of which forms a cycle."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
