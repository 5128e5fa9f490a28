"""The bytes of a trace: a file, a pipe or standard input, decompressed where they are gzip, whatever their name."""

from __future__ import annotations

import os
import stat
import sys
import time
from io import FileIO
from types import TracebackType
from typing import Protocol

from isal import isal_zlib

from diagnose.errors import InputError

__all__ = ["STANDARD_INPUT", "Source", "open_source"]

STANDARD_INPUT = "-"  # as a path

_GZIP_MAGIC = b"\x1f\x8b"
_COMPRESSED_CHUNK = 1 << 16
_GZIP_WINDOW = 31  # zlib's code for a gzip header and the largest window
# Recorded traces compress 5 to 34 times, and deflate reaches 1,032 times. Below the size nothing can do harm.
_MAX_RATIO = 100
_MIN_CHECKED_BYTES = 1 << 28
_WRITER_WAIT_S = 10.0  # for somebody to open the other end of a named pipe
_POLL_S = 0.05


class Source(Protocol):
    """A stream of JSON text."""

    raw_bytes: int  # delivered so far
    fault: str  # why the stream ended before its end, "" where it did not

    def readinto(self, view: memoryview) -> int:
        """Fill ``view`` from its beginning; return the number of bytes, 0 at the end."""

    def __enter__(self) -> Source:
        """Return self."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""


class _Plain:
    """What cannot be read to its end, such as a file on a disk that fails, ends with a ``fault``."""

    def __init__(self, file: FileIO, first: bytes) -> None:
        self._file = file
        self._first = first  # read already, to see what the file is: a pipe cannot go back
        self.raw_bytes = 0
        self.fault = ""

    def __enter__(self) -> _Plain:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def readinto(self, view: memoryview) -> int:
        if self._first:
            count = min(len(view), len(self._first))
            view[:count], self._first = self._first[:count], self._first[count:]
        else:
            try:
                count = self._file.readinto(view)
            except OSError as error:
                self.fault = f"reading it failed: {error.strerror}"
                return 0
        self.raw_bytes += count
        return count


class _Gzip(_Plain):
    """Several members after another are one stream; a damaged or cut member ends it with a ``fault``."""

    def __init__(self, file: FileIO, first: bytes, name: str) -> None:
        super().__init__(file, b"")
        self._inflater = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
        self._input = first
        self._name = name
        self._compressed_bytes = len(first)
        self._done = False

    def readinto(self, view: memoryview) -> int:
        while not self._done:
            data = self._inflate(len(view))
            if data:
                view[: len(data)] = data
                self.raw_bytes += len(data)
                if self.raw_bytes > _MIN_CHECKED_BYTES:
                    self._check_ratio()
                return len(data)
        return 0

    def _inflate(self, limit: int) -> bytes:
        if not self._input:
            self._input = self._read()
            if not self._input:
                self.fault = self.fault or "its compressed data stop early"
                self._done = True
                return b""
        try:
            data = self._inflater.decompress(self._input, limit)
        except isal_zlib.error:  # type: ignore[misc]  # a class, which its stub declares as an instance
            self.fault = "its compressed data are damaged"
            self._done = True
            return b""
        self._input = self._inflater.unconsumed_tail
        if self._inflater.eof:
            self._next_member()
        return bytes(data)

    def _read(self) -> bytes:
        try:
            data = self._file.read(_COMPRESSED_CHUNK)
        except OSError as error:
            self.fault = f"reading it failed: {error.strerror}"
            return b""
        self._compressed_bytes += len(data)
        return data

    def _next_member(self) -> None:
        self._input = self._inflater.unused_data or self._read()
        self._inflater = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
        # Padding or foreign bytes after a complete member are not data of the trace.
        self._done = not self._input.startswith(_GZIP_MAGIC)

    def _check_ratio(self) -> None:
        if self.raw_bytes > _MAX_RATIO * self._compressed_bytes:
            raise InputError(
                f"{self._name} expands to more than {_MAX_RATIO} times its size ({self.raw_bytes >> 20:,} MB so far), "
                "which no recorded trace does. If it is one, decompress it with gunzip first: "
                "a file that is not compressed has no limit."
            )


def open_source(path: str | os.PathLike[str]) -> Source:
    """Open a trace file, a pipe, or standard input, which is called ``-``.

    Raises:
        InputError: it is missing, a folder, unreadable or empty, or nothing writes into the pipe.
    """
    is_standard_input = os.fspath(path) == STANDARD_INPUT
    name = "standard input" if is_standard_input else os.fspath(path)
    try:
        file = _standard_input() if is_standard_input else _open(name)
    except FileNotFoundError:
        raise InputError(f"{name} does not exist. Check the path.") from None
    except IsADirectoryError:
        raise InputError(f"{name} is a folder, not a trace file. Name one of the traces in it.") from None
    except PermissionError as error:
        raise InputError(f"{name} cannot be read ({error.strerror}). Check its permissions.") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{name} cannot be opened ({why}). Name a trace file.") from None
    try:
        first = _first_bytes(file, 0.0 if is_standard_input else _WRITER_WAIT_S)
    except OSError as error:
        file.close()
        raise InputError(f"{name} cannot be read ({error.strerror}). Name a trace file.") from None
    if not first:
        file.close()
        raise InputError(f"{name} is empty. Record the trace again, and let the profiler finish writing it.")
    return _Gzip(file, first, name) if first == _GZIP_MAGIC else _Plain(file, first)


def _standard_input() -> FileIO:
    if sys.stdin is None:
        raise InputError("Standard input is closed. Pipe a trace into it, or name a trace file.")
    if sys.stdin.isatty():
        raise InputError("Standard input is a terminal. Pipe a trace into it, or name a trace file.")
    return FileIO(sys.stdin.fileno(), closefd=False)


def _open(name: str) -> FileIO:
    # Without waiting, which an open does where no process has opened the other end of a named pipe.
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return FileIO(descriptor)
    except OSError:
        os.close(descriptor)
        raise


def _first_bytes(file: FileIO, wait_s: float) -> bytes:
    """Return as many bytes as show what the file is, fewer where it ends before; later reads wait for data."""
    first = b""
    if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
        deadline = time.monotonic() + wait_s
        # A pipe without a writer reads as empty, one whose writer has nothing yet as None.
        while (found := file.read(len(_GZIP_MAGIC))) == b"" and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        first = found or b""
        if found == b"":
            return first
    os.set_blocking(file.fileno(), True)
    while len(first) < len(_GZIP_MAGIC) and (more := file.read(len(_GZIP_MAGIC) - len(first))):
        first += more
    return first
