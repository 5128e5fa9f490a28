"""One large file read by several processes, each of which parses a range of its bytes.

Ranges are cut between two events. Every process fills columns of its own, in which names and threads have its own
numbers; they are sent back as arrays, renumbered, and put behind each other. Whatever is not as it should be at a cut,
or is damaged anywhere, makes the file one that a single process reads: it alone knows how to go on there.

The processes are forked here and not by ``multiprocessing``, whose import takes as long as reading 2 MB and more memory
than a column.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from diagnose.trace_reader.envelope import MAX_TAIL_BYTES, read_head
from diagnose.trace_reader.events import BLOCK_BYTES, Ending, Window, read_events
from diagnose.trace_reader.rows import EventRows
from diagnose.trace_reader.stored import Stored, is_url

__all__ = ["PART_BYTES", "ReadParts", "read_parts"]

PART_BYTES = 8 << 20  # the least for a process: less costs more to start it and to send the columns back
_AHEAD_BYTES = 16 << 20  # what a process reads while this one does what else there is to do, importing the rules
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

    columns: tuple[str, ...]  # that were recorded; they themselves follow, in this order
    count: int
    names: tuple[str, ...]
    threads: tuple[tuple[str, str], ...]
    thread_names: dict[tuple[str, str], str]
    tallies: dict[str, Any]  # what EventRows counts beside its rows
    ending: Ending
    rest: bytes
    raw_bytes: int


def read_parts(
    stored: Stored, name: str, processes: int, meanwhile: Callable[[], object] | None = None
) -> ReadParts | None:
    """Read a file by so many processes, this one among them; None where it is not made for that.

    This one does ``meanwhile`` first, and reads less for that.
    """
    size = _size(stored)
    ahead = _AHEAD_BYTES if meanwhile is not None else 0
    processes = min(processes, (size + ahead) // (PART_BYTES + ahead))
    if processes < 2 or not _may_fork():
        return None
    nears = [(size + ahead) * k // processes - ahead for k in range(1, processes)]
    # A cut is where an event begins; the comma before it belongs to no range.
    cuts = [cut for near in nears if (cut := _cut_at(stored.path, near)) is not None]
    if len(cuts) < processes - 1 or sorted(set(cuts)) != cuts:
        return None
    with ExitStack() as started:
        ranges = zip(cuts, [*(cut - 1 for cut in cuts[1:]), size], strict=True)
        others = [
            started.enter_context(_started(stored.path, begin, end, is_last=end == size)) for begin, end in ranges
        ]
        if meanwhile is not None:
            meanwhile()
        first = _read_first(stored, name, cuts[0] - 1)
        return _joined(first, others) if first is not None else None


@contextmanager
def _started(path: str, begin: int, end: int, *, is_last: bool) -> Iterator[BinaryIO]:
    """Start a process that reads a range, and offer what it sends; it ends with the block."""
    receiving, sending = os.pipe()
    process = os.fork()
    if not process:
        try:
            os.close(receiving)
            with os.fdopen(sending, "wb", 0) as out:
                _send_range(out, path, begin, end, is_last=is_last)
        finally:
            os._exit(0)  # nothing that belongs to the process that was forked is closed or written twice
    os.close(sending)
    try:
        with os.fdopen(receiving, "rb", 0) as sent:
            yield sent
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _send_range(out: BinaryIO, path: str, begin: int, end: int, *, is_last: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asked ends this one
    try:
        read = _read_range(path, begin, end, is_last=is_last)
    except Exception:  # whatever is wrong with the file, who reads it alone finds and names
        return
    if read is None:
        return
    filled, columns = read
    packed = pickle.dumps(filled)
    _send(out, memoryview(len(packed).to_bytes(8, "little") + packed))
    for column in columns:
        _send(out, column.data.cast("B"))


def _send(out: BinaryIO, view: memoryview) -> None:
    while view:
        view = view[out.write(view) :]


def _receive(sent: BinaryIO, view: memoryview) -> None:
    """Fill ``view`` with what a process sends.

    Raises:
        EOFError: it ended before that.
    """
    while view:
        if not (count := sent.readinto(view)):  # type: ignore[attr-defined]  # a raw file has it
            raise EOFError
        view = view[count:]


def _read_first(stored: Stored, name: str, until: int) -> tuple[bytes, EventRows, Ending, int] | None:
    source = _Range(stored.path, 0, until, closes=True)
    with source:
        window, rows = Window(source), EventRows()
        head = read_head(window, source, name)
        ending = read_events(window, rows)
    return (head, rows, ending, source.raw_bytes) if _ends_at_the_cut(ending) else None


def _joined(first: tuple[bytes, EventRows, Ending, int], others: Sequence[BinaryIO]) -> ReadParts | None:
    """Put the ranges behind each other, in the order of the file."""
    head, rows, ending, raw_bytes = first
    rest = b""
    for other in others:
        try:
            filled = _receive_header(other)
            _append(rows, filled, other)
        except EOFError:  # its range is not whole, or it was killed
            return None
        ending, rest, raw_bytes = filled.ending, filled.rest, raw_bytes + filled.raw_bytes
    return ReadParts(head, rows, ending, rest, raw_bytes)


def _receive_header(sent: BinaryIO) -> _Filled:
    length = bytearray(8)
    _receive(sent, memoryview(length))
    packed = bytearray(int.from_bytes(length, "little"))
    _receive(sent, memoryview(packed))
    filled: _Filled = pickle.loads(packed)  # of a process that this one forked
    return filled


def _append(rows: EventRows, filled: _Filled, other: BinaryIO) -> None:
    names, threads = rows.fields.names, rows.fields.threads
    of_name = np.array([*(names[text] for text in filled.names), -1], np.int32)  # -1 picks the last one
    of_thread = np.array([*(threads[key] for key in filled.threads), -1], np.int16)
    for key, text in filled.thread_names.items():
        threads.set_name(*key, text)
    for column in filled.columns:
        values = rows.columns[column].extended(rows.count, filled.count)
        _receive(other, values.data.cast("B"))
        if column in _NUMBERED:
            values[:] = of_name[values]
        elif column == "thread":
            values[:] = of_thread[values]
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
        columns=tuple(columns),
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
        with open(stored.path, "rb") as file:  # an odd name is no Path
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
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  # closed with the stream
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
