"""Answers questions in SQL about what was recorded: a database in memory, of which a query can only read."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from diagnose.errors import UsageError
from diagnose.model.capture import Capture
from diagnose.model.events import Kind
from diagnose.tables.steps import find_steps

MAX_ROWS = 200
SCHEMA = {
    "events": "rank, id, kind, name, start_ns, end_ns, step, thread, device, stream, launched_by, bytes, shapes, types",
    "steps": "rank, step, start_ns, end_ns",
    "devices": "rank, device, name, memory_bytes",
}
_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


class Rows(NamedTuple):
    """What a query found."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool  # there are more


def query(captures: Sequence[Capture], sql: str) -> Rows:
    """Return the first rows that a query finds in the tables of ``SCHEMA``.

    Times are ns from each rank's first event. ``launched_by`` is the id of the call that queued a task of the device.

    Raises:
        UsageError: the query is wrong, does not only read, or takes too long.
    """
    with closing(sqlite3.connect(":memory:")) as base:
        for table, columns in SCHEMA.items():
            base.execute(f"CREATE TABLE {table} ({columns})")
        for capture in captures:
            for table, rows in _tables(capture).items():
                marks = ", ".join("?" for _ in SCHEMA[table].split(","))
                base.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        base.commit()
        base.set_authorizer(
            lambda action, first, second, *_: (
                sqlite3.SQLITE_OK
                if action in _READS and "load_extension" not in (first, second)
                else sqlite3.SQLITE_DENY
            )
        )
        ends = time.monotonic() + 20.0
        base.set_progress_handler(lambda: time.monotonic() > ends, 100_000)
        try:
            cursor = base.execute(sql)
            found = cursor.fetchmany(MAX_ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning) as error:
            known = "; ".join(f"{table}({columns})" for table, columns in SCHEMA.items())
            raise UsageError(f"Invalid query ({error}): only read, in {known}.") from None
        names = tuple(column[0] for column in cursor.description or ())
        return Rows(names, tuple(found[:MAX_ROWS]), len(found) > MAX_ROWS)


def _tables(capture: Capture) -> dict[str, Iterator[tuple[Any, ...]]]:
    """Return the rows of each table."""
    trace, rank = capture.trace, capture.trace.rank
    events = trace.events
    steps = find_steps(trace, exact=capture.info is not None)
    at = np.searchsorted(steps.start, events.start, side="right") - 1
    inside = (at >= 0) & (events.start < steps.end[at])
    step = np.where(inside, steps.number[at], -1)
    kinds, names = [kind.name.lower() for kind in Kind], trace.names
    threads = [thread.name or thread.tid for thread in trace.threads]

    def text(row: int) -> str | None:
        return names[row] if row >= 0 else None

    columns = (
        events.kind, events.name, events.start, events.end, step, events.thread, events.device, events.stream,
        events.cause, events.size, events.shapes, events.types,
    )  # fmt: skip
    rows = enumerate(zip(*(column.tolist() for column in columns), strict=True))
    return {
        "events": (
            (
                *(rank, number, kinds[kind], names[name], start, end, _known(in_step)),
                *(
                    threads[thread] if thread >= 0 else None,
                    _known(device),
                    _known(stream),
                    _known(cause),
                    _known(size),
                ),
                *(text(shapes), text(types)),
            )
            for number, (kind, name, start, end, in_step, thread, device, stream, cause, size, shapes, types) in rows
        ),
        "steps": (
            (rank, *row) for row in zip(steps.number.tolist(), steps.start.tolist(), steps.end.tolist(), strict=True)
        ),
        "devices": ((rank, device.id, device.name, device.memory_bytes) for device in trace.devices),
    }


def _known(value: int) -> int | None:
    """Return a value, None for -1: it does not apply, or was not recorded."""
    return None if value == -1 else value
