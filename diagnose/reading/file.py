"""One trace file into a Trace."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from diagnose.reading import origin
from diagnose.reading.blocks import Window
from diagnose.reading.envelope import Keys, read_head, read_keys
from diagnose.reading.events import Ending, read_events
from diagnose.reading.remarks import notes, repeated_note, without_events
from diagnose.reading.rows import Rows
from diagnose.reading.source import open_source
from diagnose.reading.table import Table, finish
from diagnose.trace import Trace

__all__ = ["read_trace"]

_LONGEST_TAIL = 1 << 26  # bytes behind the last event: the profiler's log, at most a few MB


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace of torch.profiler, JSON or gzip, of any release; a truncated one up to its cut.

    Memory is bounded by the columns (at most 85 bytes an event), not by the size of the file.

    Raises:
        InputError: the file cannot be read or holds no events.
        NotATraceError: it is something else than a trace of torch.profiler.
    """
    name = os.fspath(path)
    with open_source(name) as source, _without_collector():
        window = Window(source)
        head = read_head(window, source, name)
        rows = Rows()
        ending = read_events(window, rows)
        keys, cut = _read_keys(head, ending, window)
    if not rows.count:
        raise without_events(name, rows, keys, cut)
    trust = notes(rows, ending, source, cut)
    table = finish(rows)
    trace = _assemble(name, keys, table, rows)
    return replace(trace, raw_bytes=source.raw_bytes, cut=cut, trust=trust + repeated_note(table.num_repeated))


def _read_keys(head: bytes, ending: Ending, window: Window) -> tuple[Keys, bool]:
    """Return the keys around the events, and whether the file ends before its closing bracket."""
    if not ending.complete:
        return read_keys(head, b"}")[0], True
    return read_keys(head, ending.text + window.read_rest(_LONGEST_TAIL))


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
