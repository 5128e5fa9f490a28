"""Documents of Kineto as Nsight Systems would have exported the same run: SQLite, a process for each document."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

__all__ = ["pushed", "write_nsight"]

Event = Mapping[str, Any]
_TASK = "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT"
_TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_TASK}, demangledName INT, shortName INT, gridX INT, gridY INT, gridZ INT",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_TASK}, bytes INT, copyKind INT, srcKind INT, dstKind INT",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_TASK}, value INT, bytes INT",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_TASK}, syncType INT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT",
    "NVTX_EVENTS": "start INT, end INT, eventType INT, text TEXT, globalTid INT, textId INT",
    "TARGET_INFO_GPU": "id INT, name TEXT, totalMemory INT, smCount INT, computeMajor INT, computeMinor INT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INT, utcTime TEXT",
}
_COPIES = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}
_MEMORY = {"Pageable": 0, "Pinned": 1, "Device": 2}
_WAITS = {"Event Sync": 1, "Stream Wait Event": 2, "Stream Sync": 3, "Context Sync": 4}
_EPOCH_NS = 1_700_000_000_000_000_000
_THREAD_BITS = 24


def write_nsight(documents: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the documents of a run's ranks into one export, each as a process of its own."""
    with closing(sqlite3.connect(path)) as base:
        for table, columns in _TABLES.items():
            base.execute(f"CREATE TABLE {table} ({columns})")
        writer = _Writer(base)
        for rank, document in enumerate(documents):
            writer.write(document, rank)
        for gpu in documents[0].get("deviceProperties", ()):
            row = gpu["id"], gpu["name"], gpu.get("totalGlobalMem", 0), gpu.get("numSms", 0)
            writer.put("TARGET_INFO_GPU", [(*row, gpu.get("computeMajor", 0), gpu.get("computeMinor", 0))])
        writer.put("TARGET_INFO_SESSION_START_TIME", [(_EPOCH_NS, "")])
        writer.put("StringIds", [(number, text) for text, number in writer.texts.items()])
        base.commit()


class _Writer:
    def __init__(self, base: sqlite3.Connection) -> None:
        self.texts: dict[str, int] = {}
        self._base = base

    def put(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert rows of whole tables."""
        marks = ", ".join("?" for _ in _TABLES[table].split(","))
        self._base.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def write(self, document: Mapping[str, Any], rank: int) -> None:
        """Insert the events of one process."""
        events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
        self._zero = min(event["ts"] for event in events)
        self._process = (1 << 48) | (1000 + rank) << _THREAD_BITS
        self._threads: dict[Any, int] = {}
        for event in events:
            self._event(event, event.get("cat"))

    def _event(self, event: Event, category: str | None) -> None:
        args = event.get("args", {})
        if category in ("cpu_op", "Operator", "user_annotation"):
            span = self._span(event)
            self.put("NVTX_EVENTS", [(*span, 59, pushed(event["name"], args), self._thread(event), None)])
        elif category in ("cuda_runtime", "cuda_driver", "Runtime"):
            row = (*self._span(event), 0, self._thread(event), args.get("correlation", 0))
            self.put("CUPTI_ACTIVITY_KIND_RUNTIME", [(*row, self._text(f"{event['name']}_v7000"))])
        elif category in ("kernel", "Kernel"):
            name = self._text(event["name"])
            self.put("CUPTI_ACTIVITY_KIND_KERNEL", [(*self._task(event), name, name, *args.get("grid", (-1, -1, -1)))])
        elif category in ("gpu_memcpy", "Memcpy"):
            way, source, target = re.fullmatch(r"Memcpy (\w+) \((\w+) -> (\w+)\)", event["name"]).groups()  # type: ignore[union-attr]
            kinds = _COPIES[way], _MEMORY[source], _MEMORY[target]
            self.put("CUPTI_ACTIVITY_KIND_MEMCPY", [(*self._task(event), args.get("bytes", 0), *kinds)])
        elif category in ("gpu_memset", "Memset"):
            self.put("CUPTI_ACTIVITY_KIND_MEMSET", [(*self._task(event), 0, args.get("bytes", 0))])
        elif category == "cuda_sync":
            kind = _WAITS.get(event["name"], 0)
            self.put("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", [(*self._task(event), kind)])

    def _span(self, event: Event) -> tuple[int, int]:
        start = round((event["ts"] - self._zero) * 1000)
        return start, start + round(event["dur"] * 1000)

    def _task(self, event: Event) -> tuple[int, ...]:
        args = event["args"]
        stream = args["stream"] if args["stream"] != -1 else 2**32 - 1
        return (*self._span(event), args["device"], 1, stream, args.get("correlation", 0), self._process)

    def _thread(self, event: Event) -> int:
        return self._process | self._threads.setdefault(event["tid"], len(self._threads) + 1000)

    def _text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts) + 1)


def pushed(name: str, args: Mapping[str, Any]) -> str:
    """Return the text that PyTorch pushes for an operator."""
    text = name
    if (sequence := args.get("Sequence number", -1)) >= 0:
        text += f", seq = {sequence}"
    if "Input Dims" in args:
        text += f", op_id = 1, sizes = {args['Input Dims']}"
    return text
