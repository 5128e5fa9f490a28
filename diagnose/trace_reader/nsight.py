"""Reads what Nsight Systems exports as SQLite: the same table of events as from torch.profiler's files.

Its kernels, copies, runtime calls and waits are those of CUPTI, from which torch.profiler has its own. Ranges of NVTX
are operators where PyTorch has pushed them (``torch.autograd.profiler.emit_nvtx``, ``nsys profile --pytorch``), with
sequence numbers and shapes in their text, and annotations otherwise. Python frames, allocations and what a collective
moves are not in such a file. The columns of each table differ between releases; what is missing reads as unknown.
"""

from __future__ import annotations

import atexit
import re
import shutil
import sqlite3
import subprocess
import tempfile
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
from diagnose.trace_reader.fields import shortened
from diagnose.trace_reader.parts import rank_in_name
from diagnose.trace_reader.rows import EventRows
from diagnose.trace_reader.stored import is_database
from diagnose.trace_reader.table import Table, finish

__all__ = ["processes_of", "read_export", "sqlite_of"]

EXPORT = "nsys export --type sqlite"
RECORD = "nsys profile --trace=cuda,nvtx --pytorch=autograd-shapes-nvtx"
_PREFIX = "CUPTI_ACTIVITY_KIND_"
_KERNEL, _RUNTIME, _MEMCPY, _MEMSET, _SYNC = (
    f"{_PREFIX}{table}" for table in ("KERNEL", "RUNTIME", "MEMCPY", "MEMSET", "SYNCHRONIZATION")
)
_GRAPH = f"{_PREFIX}GRAPH_TRACE"  # whole launches of graphs, where their kernels were not recorded
_RANGES, _TEXTS = "NVTX_EVENTS", "StringIds"
_TASK = ("start", "end", "deviceId", "streamId", "correlationId")  # columns of all that runs on a device
_PUSHED = 59  # type of a range that one thread pushes and pops
_PROCESS = ~0xFFFFFF  # bits of a global thread id that are its process: the last 24 are the thread

# Numbers for kinds of copies, memory and waits (its ENUM tables), with torch.profiler's words for them.
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_ENDS = {"H": "Pageable", "D": "Device", "P": "Device"}  # where the kind of memory is not recorded
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
_WAITS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_VERSION = re.compile(r"_v\d+$")  # of a runtime call's interface
# What PyTorch writes after the name of an operator, in this order.
_SEQUENCE, _SIZES = ", seq = ", ", sizes = "
_ADDED = re.compile(", (?:seq|op_id|sizes|input_op_ids) = ")
_BLOCK = 50_000  # rows that are held as Python's objects at a time


class _Range(NamedTuple):
    """What the text of an NVTX range says."""

    name: str
    is_operator: bool
    sequence: int = -1
    sizes: bytes = b""


def sqlite_of(report: str) -> str:
    """Return the export of a report (``.nsys-rep``): the one beside it, else one in a temporary folder.

    Raises:
        InputError: there is none, and ``nsys`` is not installed or cannot export the report.
    """
    beside = Path(report).with_suffix(".sqlite")
    if is_database(str(beside)) and beside.stat().st_mtime >= Path(report).stat().st_mtime:
        return str(beside)
    nsys = shutil.which("nsys")
    if nsys is None:
        raise InputError(
            f"{report} is a report of Nsight Systems, and nsys is not on the PATH. Export it with "
            f"{EXPORT} {report}, and name the .sqlite file."
        )
    folder = tempfile.mkdtemp(prefix="diagnose-nsys-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = Path(folder, beside.name)
    run = subprocess.run(
        [nsys, *EXPORT.split()[1:], "--output", str(made), report], capture_output=True, text=True, check=False
    )
    if not is_database(str(made)):
        said = (run.stderr or run.stdout).strip().splitlines()
        why = f" ({shortened(said[-1])})" if said else ""
        raise InputError(f"nsys cannot export {report}{why}. Try {EXPORT} {report}.")
    return str(made)


def processes_of(path: str, name: str) -> list[int]:
    """Return the global ids of the processes that used a GPU, by the first device that each used.

    Raises:
        InputError: it is no export of Nsight Systems, or holds nothing of a GPU.
    """
    with _opened(path, name) as base:
        found: dict[int, int] = {}
        for table in (_KERNEL, _MEMCPY, _GRAPH):
            if {"globalPid", "deviceId"} <= base.columns(table):
                for process, device in base.rows(f"SELECT globalPid, MIN(deviceId) FROM {table} GROUP BY globalPid"):
                    found[process] = min(found.get(process, device), device)
        if not found and not base.columns(_KERNEL):
            raise InputError(f"{name} holds no kernel. Record with {RECORD}, and export it with {EXPORT}.")
        return sorted(found, key=lambda process: (found[process], process))


def read_export(path: str, name: str, process: int = 0) -> Trace:
    """Read an export; of several processes, which count as ranks by their devices, one by its global id.

    Raises:
        InputError: it is no export of Nsight Systems, is damaged, or holds no event.
    """
    ranks = processes_of(path, name) if process else [0]
    with _opened(path, name) as base:
        rows = EventRows()
        try:
            table = _Reader(base, rows, process).table()
        except (TypeError, ValueError, OverflowError) as error:  # a text where a number belongs
            raise InputError(f"{name} cannot be read ({error}). Export it again with {EXPORT}.") from None
        if table is None:
            raise InputError(f"{name} holds no event with a plausible time. Record the profile again.")
        return Trace(
            events=table.events,
            names=table.names,
            threads=rows.fields.threads.threads(),
            devices=tuple(_devices(base)),
            rank=ranks.index(process) if process else (rank_in_name(name) or 0),
            world_size=len(ranks),
            epoch_ns=_epoch_ns(base, table.first_ns),
            path=name,
            raw_bytes=Path(path).stat().st_size,
            trust=(*table.notes, *_notes(base)),
        )


class _Base:
    """A database whose tables may lack columns."""

    def __init__(self, connection: sqlite3.Connection, texts: dict[int, str]) -> None:
        self.texts = texts
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
        while block := cursor.fetchmany(_BLOCK):
            yield list(zip(*block, strict=True))


@contextmanager
def _opened(path: str, name: str) -> Iterator[_Base]:
    """Open an export for reading alone: no file is written beside it.

    Raises:
        InputError: it is something else, or damaged.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True)) as connection:
            base = _Base(connection, {})
            if not base.columns(_TEXTS) or not any(base.columns(table) for table in (_KERNEL, _RUNTIME, _GRAPH)):
                raise InputError(
                    f"{name} is a database, but no export of Nsight Systems with CUDA in it. Record with "
                    f"{RECORD}, and export it with {EXPORT}."
                )
            base.texts.update(base.rows(f"SELECT id, value FROM {_TEXTS}"))
            yield base
    except sqlite3.Error as error:
        raise InputError(f"{name} cannot be read ({error}). Export it again with {EXPORT}.") from None


class _Reader:
    """Moves the tables of an export into columns."""

    def __init__(self, base: _Base, rows: EventRows, process: int) -> None:
        self._base, self._rows, self._process = base, rows, process
        self._fields = rows.fields

    def table(self) -> Table | None:
        """Return the finished table, None where no event has a plausible time."""
        self._calls()
        self._kernels()
        self._copies()
        self._waits()
        self._ranges()
        return finish(self._rows) if self._rows.count else None

    def _of_process(self, column: str) -> str:
        """Return the condition for the rows of the wanted process, whose column holds its id or a thread's."""
        return f"WHERE ({column} & {_PROCESS}) = {self._process}" if self._process else ""

    def _selected(self, table: str, columns: Sequence[str], column: str) -> Iterator[list[Ints]]:
        """Yield columns of a table as arrays, of the wanted process where the table tells them apart."""
        where = self._of_process(column) if column in self._base.columns(table) else ""
        for block in self._base.blocks(table, columns, where):
            yield [_numbers(values) for values in block]

    def _name(self, text: str) -> int:
        return self._fields.names[text]

    def _named(self, texts: Ints) -> Ints:
        return _mapped(texts, lambda text: self._name(self._base.texts.get(text, "")))

    def _threads(self, global_tids: Ints) -> Ints:
        threads = self._fields.threads
        return _mapped(global_tids, lambda tid: threads[tid >> 24 & 0xFFFFFF, tid & 0xFFFFFF])

    def _put(self, kind: Kind, start: Ints, end: Ints, **columns: Ints | int) -> None:
        """Append rows; a column that is left out stays unknown."""
        rows, num = self._rows, len(start)
        values = {"start": start, "end": np.maximum(end, start), "kind": kind, **columns}
        for column, array in values.items():
            rows.columns[column].extended(rows.count, num)[:] = array
        rows.count += num
        rows.num_events += num

    def _calls(self) -> None:
        columns = ("start", "end", "globalTid", "correlationId", "nameId")
        for start, end, thread, correlation, text in self._selected(_RUNTIME, columns, "globalTid"):
            names = _mapped(text, lambda each: self._name(_VERSION.sub("", self._base.texts.get(each, ""))))
            self._put(Kind.RUNTIME, start, end, name=names, thread=self._threads(thread), correlation=correlation)

    def _tasks(self, table: str, columns: Sequence[str]) -> Iterator[tuple[Ints, Ints, dict[str, Ints], list[Ints]]]:
        """Yield start, end and place of what ran on a device, and other columns."""
        for start, end, device, stream, correlation, *more in self._selected(table, (*_TASK, *columns), "globalPid"):
            yield start, end, {"device": device, "stream": stream, "correlation": correlation}, more

    def _kernels(self) -> None:
        for start, end, task, (text, *grid) in self._tasks(_KERNEL, ("demangledName", "gridX", "gridY", "gridZ")):
            blocks = np.prod(grid, axis=0)
            unknown = (np.min(grid, axis=0) < 0) | (blocks >= 2**31)
            self._put(Kind.KERNEL, start, end, name=self._named(text), grid=np.where(unknown, -1, blocks), **task)
        for start, end, task, _ in self._tasks(_GRAPH, ()):
            self._put(Kind.KERNEL, start, end, name=self._name("CUDA graph"), **task)

    def _copies(self) -> None:
        columns = ("bytes", "copyKind", "srcKind", "dstKind")
        for start, end, task, (size, way, source, target) in self._tasks(_MEMCPY, columns):
            kinds = way << 16 | (source & 0xFF) << 8 | target & 0xFF
            names = _mapped(kinds, lambda each: self._name(_copy_name(each >> 16, each >> 8 & 0xFF, each & 0xFF)))
            self._put(Kind.MEMCPY, start, end, name=names, size=size, **task)
        for start, end, task, (size,) in self._tasks(_MEMSET, ("bytes",)):
            self._put(Kind.MEMSET, start, end, name=self._name("Memset (Device)"), size=size, **task)

    def _waits(self) -> None:
        for start, end, task, (kind,) in self._tasks(_SYNC, ("syncType",)):
            names = _mapped(kind, lambda each: self._name(_WAITS.get(each, "Synchronization")))
            task["stream"] = np.where(task["stream"] < 2**31, task["stream"], -1)
            self._put(Kind.SYNC, start, end, name=names, **task)

    def _ranges(self) -> None:
        """Append ranges that one thread has pushed and popped; a text is in the row, or in the table of texts."""
        fields, texts = self._fields, self._base.texts
        where = self._of_process("globalTid")
        where += f"{' AND' if where else 'WHERE'} eventType = {_PUSHED} AND end >= start"
        for *columns, ids, said in self._base.blocks(_RANGES, ("start", "end", "globalTid", "textId", "text"), where):
            start, end, thread = map(_numbers, columns)
            parts = [
                _range(text if isinstance(text, str) else texts.get(number, ""))
                for number, text in zip(ids, said, strict=True)
            ]
            names = _numbers([fields.names[part.name] for part in parts])
            threads = self._threads(thread)
            is_op = np.array([part.is_operator for part in parts], np.bool_)
            shapes = _numbers([fields.texts[part.sizes] for part in parts])[is_op]
            sequence = _numbers([part.sequence for part in parts])[is_op]
            more = {"shapes": shapes, "sequence": sequence}
            for kind, rows, others in ((Kind.OP, is_op, more), (Kind.ANNOTATION, ~is_op, {})):
                if rows.any():
                    self._put(kind, start[rows], end[rows], name=names[rows], thread=threads[rows], **others)


def _numbers(values: Sequence[int]) -> Ints:
    return np.fromiter(values, np.int64, len(values))


def _mapped(values: Ints, number: Callable[[int], int]) -> Ints:
    """Return the number of each value; each different one is looked up once."""
    each, _, of = grouped(values)
    return np.array([number(value) for value in each.tolist()], np.int64)[of]


def _copy_name(kind: int, source: int, target: int) -> str:
    way = _COPIES.get(kind, "")
    if not way:
        return "Memcpy"
    ends = ((source, way[0]), (target, way[-1]))
    sides = [_MEMORY[number] if number < len(_MEMORY) else _ENDS[side] for number, side in ends]
    return f"Memcpy {way} ({' -> '.join(sides)})"


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


def _devices(base: _Base) -> Iterator[Device]:
    """Yield the devices as far as they are described, under the numbers that CUDA has given them."""
    there = base.columns("TARGET_INFO_GPU")
    wanted = {
        "id": ("cuDevice", "id"),
        "name": ("name",),
        "memory": ("totalMemory",),
        "sms": ("smCount",),
        "major": ("computeMajor", "smMajor"),
        "minor": ("computeMinor", "smMinor"),
    }
    chosen = {what: next((name for name in names if name in there), "NULL") for what, names in wanted.items()}
    if chosen["id"] == "NULL":
        return
    for number, name, memory, sms, major, minor in base.rows(
        f"SELECT {', '.join(chosen.values())} FROM TARGET_INFO_GPU"
    ):
        if isinstance(number, int) and number >= 0:
            yield Device(number, str(name or ""), int(memory or 0), int(sms or 0), (int(major or 0), int(minor or 0)))


def _epoch_ns(base: _Base, first_ns: int) -> int:
    """Return the wall-clock time of a time of the session, 0 if it is not known."""
    if "utcEpochNs" not in base.columns("TARGET_INFO_SESSION_START_TIME"):
        return 0
    found = base.rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
    return int(found[0][0]) + first_ns if found and isinstance(found[0][0], int) else 0


def _notes(base: _Base) -> Iterator[Note]:
    """Say what such a file lacks."""
    yield Note(
        "An export of Nsight Systems has no Python frames, no allocations and no sizes of collectives: what needs them "
        "is left out."
    )
    if not base.columns(_RANGES):
        yield Note(f"It has no NVTX ranges either, so no operator is known. Record with {RECORD}.")
    if base.columns(_GRAPH):
        yield Note("CUDA graphs count as one kernel each. Record with --cuda-graph-trace=node to see into them.")
