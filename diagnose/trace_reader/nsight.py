"""What Nsight Systems exports as SQLite.

Its kernels, copies, runtime calls and waits are those of CUPTI, from which torch.profiler has its own. Ranges of NVTX
are operators where PyTorch has pushed them (``torch.autograd.profiler.emit_nvtx``, ``nsys profile --pytorch``), with
sequence numbers and shapes in their text, and annotations otherwise. Python frames, allocations and what a collective
moves are not in such a file.
"""

from __future__ import annotations

import atexit
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from diagnose.errors import InputError
from diagnose.model.arrays import Ints
from diagnose.model.events import Device, Kind, Note
from diagnose.trace_reader.databases import Base, Profile, mapped, numbers
from diagnose.trace_reader.fields import shortened
from diagnose.trace_reader.stored import is_database

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


class Nsight(Profile):
    """An export of Nsight Systems; a process's id is the one that it has among those of all machines."""

    _texts: dict[int, str]  # by id

    @classmethod
    def is_of(cls, base: Base) -> bool:
        """Return whether it has texts, and kernels or calls."""
        return bool(base.columns(_TEXTS)) and any(base.columns(table) for table in (_KERNEL, _RUNTIME, _GRAPH))

    def processes(self) -> dict[int, int]:
        """Return the ids of the processes that used a GPU, with the first device of each."""
        found: dict[int, int] = {}
        for table in (_KERNEL, _MEMCPY, _GRAPH):
            if {"globalPid", "deviceId"} <= self.base.columns(table):
                query = f"SELECT globalPid, MIN(deviceId) FROM {table} GROUP BY globalPid"
                for process, device in self.base.rows(query):
                    found[process] = min(found.get(process, device), device)
        if not found and not self.base.columns(_KERNEL):
            raise InputError(f"{self.base.name} holds no kernel. Record with {RECORD}, and export it with {EXPORT}.")
        return found

    def pid_of(self, process: int) -> int:
        """Return the system's number of a process, which follows those of hardware and virtual machine."""
        return process >> 24 & 0xFFFFFF

    def load(self) -> None:
        """Append the events of the wanted process."""
        self._texts = dict(self.base.rows(f"SELECT id, value FROM {_TEXTS}"))
        self._calls()
        self._kernels()
        self._copies()
        self._waits()
        self._ranges()

    def devices(self) -> Iterator[Device]:
        """Yield the devices as far as they are described, under the numbers that CUDA has given them."""
        there = self.base.columns("TARGET_INFO_GPU")
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
        for number, name, memory, sms, major, minor in self.base.rows(
            f"SELECT {', '.join(chosen.values())} FROM TARGET_INFO_GPU"
        ):
            if isinstance(number, int) and number >= 0:
                yield Device(
                    number, str(name or ""), int(memory or 0), int(sms or 0), (int(major or 0), int(minor or 0))
                )

    def epoch_ns(self, first_ns: int) -> int:
        """Return the wall-clock time of a time of the session, 0 if it is not known."""
        if "utcEpochNs" not in self.base.columns("TARGET_INFO_SESSION_START_TIME"):
            return 0
        found = self.base.rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
        return int(found[0][0]) + first_ns if found and isinstance(found[0][0], int) else 0

    def notes(self) -> Iterator[Note]:
        """Say what such a file lacks."""
        yield Note(
            "An export of Nsight Systems has no Python frames, no allocations and no sizes of collectives: what needs "
            "them is left out."
        )
        if not self.base.columns(_RANGES):
            yield Note(f"It has no NVTX ranges either, so no operator is known. Record with {RECORD}.")
        if self.base.columns(_GRAPH):
            yield Note("CUDA graphs count as one kernel each. Record with --cuda-graph-trace=node to see into them.")

    def _of_process(self, column: str) -> str:
        """Return the condition for the rows of the wanted process, whose column holds its id or a thread's."""
        return f"WHERE ({column} & {_PROCESS}) = {self.process}" if self.process else ""

    def _selected(self, table: str, columns: Sequence[str], column: str) -> Iterator[list[Ints]]:
        """Yield columns of a table as arrays, of the wanted process where the table tells them apart."""
        where = self._of_process(column) if column in self.base.columns(table) else ""
        for block in self.base.blocks(table, columns, where):
            yield [numbers(values) for values in block]

    def _named(self, texts: Ints) -> Ints:
        return mapped(texts, lambda text: self.number(self._texts.get(text, "")))

    def _threads(self, global_tids: Ints) -> Ints:
        threads = self.rows.fields.threads
        return mapped(global_tids, lambda tid: threads[tid >> 24 & 0xFFFFFF, tid & 0xFFFFFF])

    def _calls(self) -> None:
        columns = ("start", "end", "globalTid", "correlationId", "nameId")
        for start, end, thread, correlation, text in self._selected(_RUNTIME, columns, "globalTid"):
            names = mapped(text, lambda each: self.number(_VERSION.sub("", self._texts.get(each, ""))))
            self.put(Kind.RUNTIME, start, end, name=names, thread=self._threads(thread), correlation=correlation)

    def _tasks(self, table: str, columns: Sequence[str]) -> Iterator[tuple[Ints, Ints, dict[str, Ints], list[Ints]]]:
        """Yield start, end and place of what ran on a device, and other columns."""
        for start, end, device, stream, correlation, *more in self._selected(table, (*_TASK, *columns), "globalPid"):
            yield start, end, {"device": device, "stream": stream, "correlation": correlation}, more

    def _kernels(self) -> None:
        for start, end, task, (text, *grid) in self._tasks(_KERNEL, ("demangledName", "gridX", "gridY", "gridZ")):
            blocks = grid[0] * grid[1] * grid[2]
            unknown = (np.min(grid, axis=0) < 0) | (blocks >= 2**31)
            self.put(Kind.KERNEL, start, end, name=self._named(text), grid=np.where(unknown, -1, blocks), **task)
        for start, end, task, _ in self._tasks(_GRAPH, ()):
            self.put(Kind.KERNEL, start, end, name=self.number("CUDA graph"), **task)

    def _copies(self) -> None:
        columns = ("bytes", "copyKind", "srcKind", "dstKind")
        for start, end, task, (size, way, source, target) in self._tasks(_MEMCPY, columns):
            kinds = way << 16 | (source & 0xFF) << 8 | target & 0xFF
            names = mapped(kinds, lambda each: self.number(_copy_name(each >> 16, each >> 8 & 0xFF, each & 0xFF)))
            self.put(Kind.MEMCPY, start, end, name=names, size=size, **task)
        for start, end, task, (size,) in self._tasks(_MEMSET, ("bytes",)):
            self.put(Kind.MEMSET, start, end, name=self.number("Memset (Device)"), size=size, **task)

    def _waits(self) -> None:
        for start, end, task, (kind,) in self._tasks(_SYNC, ("syncType",)):
            names = mapped(kind, lambda each: self.number(_WAITS.get(each, "Synchronization")))
            task["stream"] = np.where(task["stream"] < 2**31, task["stream"], -1)
            self.put(Kind.SYNC, start, end, name=names, **task)

    def _ranges(self) -> None:
        """Append ranges that one thread has pushed and popped; a text is in the row, or in the table of texts."""
        where = self._of_process("globalTid")
        where += f"{' AND' if where else 'WHERE'} eventType = {_PUSHED} AND end >= start"
        for *columns, ids, said in self.base.blocks(_RANGES, ("start", "end", "globalTid", "textId", "text"), where):
            start, end, thread = map(numbers, columns)
            texts = zip(ids, said, strict=True)
            found = [text if isinstance(text, str) else self._texts.get(number, "") for number, text in texts]
            self.put_ranges(start, end, self._threads(thread), found)


def _copy_name(kind: int, source: int, target: int) -> str:
    way = _COPIES.get(kind, "")
    if not way:
        return "Memcpy"
    ends = ((source, way[0]), (target, way[-1]))
    sides = [_MEMORY[number] if number < len(_MEMORY) else _ENDS[side] for number, side in ends]
    return f"Memcpy {way} ({' -> '.join(sides)})"
