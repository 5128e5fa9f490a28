"""Reads profiles that other tools write as databases of SQLite, into the table of events that every trace has.

Each tool has a ``Profile``: which tables it writes, and how their columns become the events'. Columns differ between
releases; what is missing reads as unknown.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from diagnose.errors import InputError
from diagnose.model.arrays import Ints
from diagnose.model.events import Device, Kind, Note, Trace
from diagnose.model.intervals import grouped
from diagnose.trace_reader.parts import rank_in_name
from diagnose.trace_reader.rows import EventRows
from diagnose.trace_reader.table import finish

# What PyTorch writes after the name of an operator, in this order.
_SEQUENCE, _SIZES = ", seq = ", ", sizes = "
_ADDED = re.compile(", (?:seq|op_id|sizes|input_op_ids) = ")


class _Range(NamedTuple):
    """What the text of an NVTX range says."""

    name: str
    is_operator: bool
    sequence: int = -1
    sizes: bytes = b""


class Base:
    """A database whose tables may lack columns."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self.name = name
        self._connection = connection
        self._columns: dict[str, frozenset[str]] = {}

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table, none if it is not there."""
        if table not in self._columns:
            self._columns[table] = frozenset(row[1] for row in self.rows(f"PRAGMA table_info({table})"))
        return self._columns[table]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return what a query finds."""
        return self._connection.execute(query).fetchall()

    def blocks(self, table: str, columns: Sequence[str], where: str = "") -> Iterator[list[tuple[Any, ...]]]:
        """Yield these columns of a table block by block, -1 where the file lacks one or has no value."""
        there = self.columns(table)
        if not {"start", "end"} <= there:
            return
        chosen = [f"IFNULL({column}, -1)" if column in there else "-1" for column in columns]
        cursor = self._connection.execute(f"SELECT {', '.join(chosen)} FROM {table} {where}")
        while block := cursor.fetchmany(50_000):  # rows that are held as Python's objects at a time
            yield list(zip(*block, strict=True))


class Profile:
    """What a tool writes; each has its own subclass."""

    def __init__(self, base: Base, process: int) -> None:
        """``process`` is the id of the one to read; 0 stands for the only one."""
        self.base, self.process, self.rows = base, process, EventRows()

    @classmethod
    def is_of(cls, base: Base) -> bool:
        """Return whether the tool wrote the database."""
        raise NotImplementedError

    def processes(self) -> dict[int, int]:
        """Return the ids of the processes that used a GPU, with the first device of each.

        Raises:
            InputError: nothing of a GPU was recorded.
        """
        raise NotImplementedError

    def ranks(self) -> list[int]:
        """Return the ids of these processes in the order of their ranks, by the first device that each used.

        Raises:
            InputError: nothing of a GPU was recorded.
        """
        found = self.processes()
        return sorted(found, key=lambda process: (found[process], process))

    def pid_of(self, process: int) -> int:
        """Return the system's number of a process."""
        return process

    def load(self) -> None:
        """Append the events of the wanted process to the rows."""
        raise NotImplementedError

    def devices(self) -> Iterator[Device]:
        """Yield the devices as far as they are described."""
        raise NotImplementedError

    def epoch_ns(self, first_ns: int) -> int:
        """Return the wall-clock time of a time in the file, 0 if it is not known."""
        raise NotImplementedError

    def notes(self) -> Iterator[Note]:
        """Say what the file lacks."""
        raise NotImplementedError

    def number(self, text: str) -> int:
        """Return the row of a name."""
        return self.rows.fields.names[text]

    def put(self, kind: Kind, start: Ints, end: Ints, **columns: Ints | int) -> None:
        """Append rows; a column that is left out stays unknown."""
        rows, num = self.rows, len(start)
        values = {"start": start, "end": np.maximum(end, start), "kind": kind, **columns}
        for column, array in values.items():
            rows.columns[column].extended(rows.count, num)[:] = array
        rows.count += num
        rows.num_events += num

    def put_ranges(self, start: Ints, end: Ints, thread: Ints, texts: Sequence[str]) -> None:
        """Append ranges that a program has pushed: operators if PyTorch has, which says more in the text."""
        fields = self.rows.fields
        parts = list(map(_range, texts))
        names = numbers([fields.names[part.name] for part in parts])
        is_op = np.array([part.is_operator for part in parts], np.bool_)
        shapes = numbers([fields.texts[part.sizes] for part in parts])[is_op]
        more = {"shapes": shapes, "sequence": numbers([part.sequence for part in parts])[is_op]}
        for kind, rows, others in ((Kind.OP, is_op, more), (Kind.ANNOTATION, ~is_op, {})):
            if rows.any():
                self.put(kind, start[rows], end[rows], name=names[rows], thread=thread[rows], **others)


@contextmanager
def _opened(path: str, name: str, process: int) -> Iterator[Profile]:
    """Open a database for reading alone: no file is written beside it.

    Raises:
        InputError: it is something else, or damaged.
    """
    from diagnose.trace_reader.nsight import EXPORT, Nsight
    from diagnose.trace_reader.rocpd import Rocpd

    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True)) as connection:
            base = Base(connection, name)
            kind = next((each for each in (Nsight, Rocpd) if each.is_of(base)), None)
            if kind is None:
                raise InputError(
                    f"{name} is a database, but neither an export of Nsight Systems ({EXPORT}) nor one of rocprofv3 "
                    "(--output-format rocpd) with kernels in it. Export the profile again."
                )
            yield kind(base, process)
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:  # a text where a number belongs
        raise InputError(f"{name} cannot be read ({error}). Export the profile again.") from None


def processes_of(path: str, name: str) -> dict[int, int]:
    """Return the processes that used a GPU, in the order of their ranks: their ids in the file and their own.

    Raises:
        InputError: it is no profile, or holds nothing of a GPU.
    """
    with _opened(path, name, 0) as profile:
        return {each: profile.pid_of(each) for each in profile.ranks()}


def read_database(path: str, name: str, process: int = 0) -> Trace:
    """Read a profile; of several processes, which count as ranks by their devices, one by its id.

    Raises:
        InputError: it is no profile, is damaged, or holds no event.
    """
    with _opened(path, name, process) as profile:
        ranks = profile.ranks() if process else [0]
        profile.load()
        table = finish(profile.rows) if profile.rows.count else None
        if table is None:
            raise InputError(f"{name} holds no event with a plausible time. Record the profile again.")
        return Trace(
            events=table.events,
            names=table.names,
            threads=profile.rows.fields.threads.threads(),
            devices=tuple(profile.devices()),
            rank=ranks.index(process) if process else (rank_in_name(name) or 0),
            world_size=len(ranks),
            epoch_ns=profile.epoch_ns(table.first_ns),
            path=name,
            raw_bytes=Path(path).stat().st_size,
            trust=(*table.notes, *profile.notes()),
        )


def numbers(values: Sequence[int]) -> Ints:
    """Return a column as an array."""
    return np.fromiter(values, np.int64, len(values))


def mapped(values: Ints, number: Callable[[int], int]) -> Ints:
    """Return the number of each value; each different one is looked up once."""
    each, _, of = grouped(values)
    return np.array([number(value) for value in each.tolist()], np.int64)[of]


def _range(text: str) -> _Range:
    """Return what a range says; only what dispatches has a namespace or a sequence number."""
    found = _ADDED.search(text)
    if found is None:
        return _Range(text, "::" in text)
    name, rest = text[: found.start()], text[found.start() :]
    digits = rest[len(_SEQUENCE) :].partition(",")[0] if rest.startswith(_SEQUENCE) else ""
    sequence = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else -1
    if sequence < 0 and "::" not in name:
        return _Range(name, is_operator=False)
    sizes = rest.partition(_SIZES)[2].partition(", input_op_ids = ")[0]
    return _Range(name, is_operator=True, sequence=sequence, sizes=sizes.encode())
