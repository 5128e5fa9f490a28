"""One large file read by several processes, each of which parses a range of its bytes.

Ranges are cut between two events. Every process fills columns of its own, in which names and threads have its own
numbers; they are sent back as arrays, renumbered, and put behind each other. Whatever is not as it should be at a cut,
or is damaged anywhere, makes the file one that a single process reads: it alone knows how to go on there.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from diagnose.trace_reader.envelope import MAX_TAIL_BYTES, read_head
from diagnose.trace_reader.events import BLOCK_BYTES, Ending, Window, read_events
from diagnose.trace_reader.remote import is_url
from diagnose.trace_reader.rows import EventRows
from diagnose.trace_reader.stored import Stored

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["MIN_BYTES", "ReadParts", "read_parts"]

MIN_BYTES = 96 << 20  # of a file: below it, starting a process and sending its columns back costs what it saves
_NUMBERED = ("name", "shapes", "types", "values", "detail")  # columns that hold numbers of names
_FIRST_BYTES = (b"{", b"[")


@dataclass(frozen=True, slots=True)
class ReadParts:
    """What reading a file from its beginning to its end gives."""

    head: bytes
    rows: EventRows
    ending: Ending
    rest: bytes  # what follows the ending's own text
    raw_bytes: int


@dataclass(frozen=True, slots=True)
class _Filled:
    """The rows of one range, and what their numbers stand for."""

    columns: dict[str, np.dtype[Any]]  # the columns themselves follow, in this order
    count: int
    names: tuple[str, ...]
    threads: tuple[tuple[str, str], ...]
    thread_names: dict[tuple[str, str], str]
    tallies: dict[str, Any]  # what EventRows counts beside its rows
    ending: Ending
    rest: bytes
    raw_bytes: int


def read_parts(stored: Stored, name: str, processes: int) -> ReadParts | None:
    """Read a file by so many processes, this one among them; None where it is not made for that."""
    size = _size(stored)
    if processes < 2 or size < MIN_BYTES or not _may_fork():
        return None
    # A cut is where an event begins; the comma before it belongs to no range.
    cuts = [cut for k in range(1, processes) if (cut := _cut_at(stored.path, size * k // processes)) is not None]
    if len(cuts) < processes - 1 or sorted(set(cuts)) != cuts:
        return None
    with ExitStack() as started:
        ranges = zip(cuts, [*(cut - 1 for cut in cuts[1:]), size], strict=True)
        others = [
            started.enter_context(_started(stored.path, begin, end, is_last=end == size)) for begin, end in ranges
        ]
        first = _read_first(stored, name, cuts[0] - 1)
        return _joined(first, others) if first is not None else None


@contextmanager
def _started(path: str, begin: int, end: int, *, is_last: bool) -> Iterator[Connection]:
    """Start a process that reads a range, and offer what it sends; it ends with the block."""
    from multiprocessing import get_context  # 12 ms, for long files only

    context = get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_send_range, args=(sending, path, begin, end, is_last), daemon=True)
    process.start()
    sending.close()
    try:
        yield receiving
    finally:
        receiving.close()
        process.terminate()
        process.join()


def _send_range(sending: Connection, path: str, begin: int, end: int, is_last: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asked ends this one
    try:
        read = _read_range(path, begin, end, is_last=is_last)
    except Exception:  # whatever is wrong with the file, who reads it alone finds and names
        read = None
    if read is None:
        sending.send(None)
        return
    filled, columns = read
    sending.send(filled)
    for column in columns:  # one after the other: who receives them holds one twice, and not all of them
        sending.send_bytes(column.data)


def _read_first(stored: Stored, name: str, until: int) -> tuple[bytes, EventRows, Ending, int] | None:
    source = _Range(stored.path, 0, until, closes=True)
    with source:
        window, rows = Window(source), EventRows()
        head = read_head(window, source, name)
        ending = read_events(window, rows)
    return (head, rows, ending, source.raw_bytes) if _ends_at_the_cut(ending) else None


def _joined(first: tuple[bytes, EventRows, Ending, int], others: Sequence[Connection]) -> ReadParts | None:
    """Put the ranges behind each other, in the order of the file."""
    head, rows, ending, raw_bytes = first
    rest = b""
    for other in others:
        try:
            filled = other.recv()
            if filled is None:
                return None
            _append(rows, filled, other)
        except (EOFError, OSError):  # its process was killed
            return None
        ending, rest, raw_bytes = filled.ending, filled.rest, raw_bytes + filled.raw_bytes
    return ReadParts(head, rows, ending, rest, raw_bytes)


def _append(rows: EventRows, filled: _Filled, other: Connection) -> None:
    names, threads = rows.fields.names, rows.fields.threads
    of_name = np.array([*(names[text] for text in filled.names), -1], np.int64)  # -1 picks the last one
    of_thread = np.array([*(threads[key] for key in filled.threads), -1], np.int64)
    for key, text in filled.thread_names.items():
        threads.set_name(*key, text)
    for column, dtype in filled.columns.items():
        values: npt.NDArray[Any] = np.frombuffer(other.recv_bytes(), dtype)
        if column in _NUMBERED:
            values = of_name[values]
        elif column == "thread":
            values = of_thread[values]
        rows.columns[column].write(rows.count, values)
    rows.count += filled.count
    for tally, value in filled.tallies.items():
        if isinstance(value, set):
            getattr(rows, tally).update(value)
        else:
            setattr(rows, tally, getattr(rows, tally) + value)


def _read_range(path: str, begin: int, end: int, *, is_last: bool) -> tuple[_Filled, list[npt.NDArray[Any]]] | None:
    """Read the events of a range in a process of its own; None where it is not whole."""
    source = _Range(path, begin, end, closes=not is_last)
    with source:
        window, rows = Window(source), EventRows()
        ending = read_events(window, rows)
        rest = window.read_rest(MAX_TAIL_BYTES) if is_last and ending.complete else b""
    if source.fault or not ending.complete or ending.num_skipped or not (is_last or _ends_at_the_cut(ending)):
        return None
    columns = {name: column.finish(rows.count) for name, column in rows.columns.items() if column.is_recorded}
    threads = rows.fields.threads
    filled = _Filled(
        columns={name: column.dtype for name, column in columns.items()},
        count=rows.count,
        names=tuple(rows.fields.names),
        threads=threads.ids,
        thread_names=threads.given_names,
        tallies={
            "left_out": rows.left_out,
            "phases": rows.phases,
            "categories": rows.categories,
            "num_events": rows.num_events,
            "num_without_length": rows.num_without_length,
        },
        ending=ending,
        rest=rest,
        raw_bytes=source.raw_bytes,  # the bracket behind a range counts for the comma
    )
    return filled, list(columns.values())


def _ends_at_the_cut(ending: Ending) -> bool:
    """Return whether the list went on to the bracket that stands in for the comma of the cut, and not less far."""
    return ending.complete and not ending.text.strip() and not ending.num_skipped and not ending.fault


def _may_fork() -> bool:
    """Return whether this process has no other thread: one may hold a lock that a forked process waits for."""
    return threading.active_count() == 1


def _size(stored: Stored) -> int:
    """Return the bytes of a file of this machine that is not compressed, 0 for any other."""
    if stored.size is not None or stored.method is not None or stored.offset or is_url(stored.path):
        return 0
    try:
        with open(stored.path, "rb") as file:  # noqa: PTH123  # an odd name is no Path
            is_plain = file.read(1) in _FIRST_BYTES
            return os.fstat(file.fileno()).st_size if is_plain else 0
    except (OSError, ValueError):
        return 0


def _cut_at(path: str, near: int) -> int | None:
    """Return where an event begins behind the comma before it, near a place in the file; None where none is found."""
    source = _Range(path, near, near + 2 * BLOCK_BYTES, closes=False)
    with source:
        window = Window(source)
        while window.fill():
            if edge := window.last_edge():
                return near + edge  # the window's first character is a bracket that the file does not have
    return None


class _Range:
    """A range of a file's bytes as a stream, behind which the bracket may stand that closes a list."""

    def __init__(self, path: str, begin: int, end: int, *, closes: bool) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: PTH123, SIM115
        self._file.seek(begin)
        self._left = end - begin
        self._closing = b"]" if closes else b""
        self.raw_bytes = 0
        self.fault = ""

    def __enter__(self) -> _Range:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def readinto(self, view: memoryview) -> int:
        """Fill ``view`` from its beginning; return the number of bytes, 0 at the end."""
        if not self._left:
            count = min(len(self._closing), len(view))
            view[:count], self._closing = self._closing[:count], self._closing[count:]
        else:
            try:
                count = self._file.readinto(view[: self._left]) or 0
            except OSError as error:
                count, self.fault = 0, f"reading it failed: {error.strerror}"
            self._left = self._left - count if count else 0
        self.raw_bytes += count
        return count
