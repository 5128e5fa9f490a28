"""The text of a trace: a stream of bytes, decompressed where it is gzip or zstd, whatever its name.

The bytes come from a file, a pipe, standard input or a URL (``diagnose.trace_reader.stored``).
"""

from __future__ import annotations

import os
import stat
import sys
import time
from io import FileIO
from typing import IO, cast

from isal import isal_zlib

from diagnose.errors import InputError, missing_extra
from diagnose.trace_reader.stored import SQLITE_MAGIC, Bytes, Piped, Stored, open_bytes, open_file

STANDARD_INPUT = "-"  # as a path

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_MAGIC_BYTES = 4
# Recorded traces compress 5 to 34 times, and deflate reaches 1,032 times. Below the size nothing can do harm.
_MAX_RATIO = 100
_MIN_CHECKED_BYTES = 1 << 28
_WRITER_WAIT_S = 10.0  # for somebody to open the other end of a named pipe


class Source:
    """A stream of JSON text, here the bytes as they are. What cannot be read to its end ends with a ``fault``."""

    def __init__(self, file: Bytes, first: bytes) -> None:
        self._file = file
        self._first = first  # read already, to see what the file is: a pipe cannot go back
        self.raw_bytes = 0  # delivered so far
        self.fault = ""  # why the stream ended before its end

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def readinto(self, view: memoryview) -> int:
        """Fill ``view`` from its beginning; return the number of bytes, 0 at the end."""
        if self._first:
            count = min(len(view), len(self._first))
            view[:count], self._first = self._first[:count], self._first[count:]
        else:
            try:
                count = self._file.readinto(view) or 0
            except OSError as error:
                self.fault = f"reading it failed: {error.strerror}"
                return 0
        self.raw_bytes += count
        return count


class _Compressed(Source):
    """Counts what goes in and what comes out, and stops what expands as no trace does."""

    def __init__(self, file: Bytes, first: bytes, name: str) -> None:
        super().__init__(file, b"")
        self._input = first
        self._name = name
        self._compressed_bytes = len(first)

    def _read(self) -> bytes:
        try:
            data = self._file.read(1 << 16) or b""
        except OSError as error:
            self.fault = f"reading it failed: {error.strerror}"
            return b""
        self._compressed_bytes += len(data)
        return data

    def _deliver(self, count: int) -> int:
        self.raw_bytes += count
        if self.raw_bytes > max(_MIN_CHECKED_BYTES, _MAX_RATIO * self._compressed_bytes):
            raise InputError(
                f"{self._name} expands to more than {_MAX_RATIO} times its size ({self.raw_bytes >> 20:,} MB so far), "
                "which no recorded trace does. If it is one, decompress it with gunzip first: "
                "a file that is not compressed has no limit."
            )
        return count


class _Gzip(_Compressed):
    """Several members after another are one stream; a damaged or cut member ends it with a ``fault``."""

    def __init__(self, file: Bytes, first: bytes, name: str) -> None:
        super().__init__(file, first, name)
        # 31 is zlib's code for a gzip header and the largest window.
        self._inflater = isal_zlib.decompressobj(wbits=31)
        self._done = False

    def readinto(self, view: memoryview) -> int:
        while not self._done:
            data = self._inflate(len(view))
            if data:
                view[: len(data)] = data
                return self._deliver(len(data))
        return 0

    def _inflate(self, limit: int) -> bytes:
        self._input = self._input or self._read()
        try:
            data = self._inflater.decompress(self._input, limit)  # without input: what it still holds
        except isal_zlib.error:  # type: ignore[misc]  # a class, which its stub declares as an instance
            self.fault = "its compressed data are damaged"
            self._done = True
            return b""
        if not (data or self._input or self._inflater.eof):
            self.fault = self.fault or "its compressed data stop early"
            self._done = True
        self._input = self._inflater.unconsumed_tail
        if self._inflater.eof:
            self._next_member()
        return bytes(data)

    def _next_member(self) -> None:
        self._input = self._inflater.unused_data or self._read()
        self._inflater = isal_zlib.decompressobj(wbits=31)
        # Padding or foreign bytes after a complete member are not data of the trace.
        self._done = not self._input.startswith(_GZIP_MAGIC)


class _Zstd(_Compressed):
    """Several frames after another are one stream."""

    def __init__(self, file: Bytes, first: bytes, name: str) -> None:
        super().__init__(file, first, name)
        try:
            import zstandard
        except ImportError:
            file.close()
            raise missing_extra(f"{name} is compressed with zstd", "zstd") from None
        self._error = zstandard.ZstdError
        # Bytes that decompressing may hold: what zstd itself allows unless told otherwise.
        self._reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
            cast("IO[bytes]", self),  # it only reads
            read_across_frames=True,
            closefd=False,
        )

    def read(self, _count: int) -> bytes:
        """Return compressed bytes, as the decompressor asks for them."""
        data, self._input = self._input or self._read(), b""
        return data

    def readinto(self, view: memoryview) -> int:
        try:
            count: int = self._reader.readinto(view)
        except self._error:
            self.fault = self.fault or "its compressed data are damaged"
            return 0
        return self._deliver(count)


def open_source(path: str | os.PathLike[str] | Stored | Piped) -> Source:
    """Open a trace: a file, a pipe, standard input, which is called ``-``, or what ``list_inputs`` found.

    Raises:
        InputError: it is missing, a folder, unreadable or empty, nothing writes into the pipe, or it is compressed with
            zstd, and the package for that is not installed.
    """
    if isinstance(path, Stored):
        file: Bytes = open_bytes(path)
        name = path.name
        try:
            first = file.read(_MAGIC_BYTES) or b""
        except OSError as error:
            file.close()
            raise InputError(f"{name} cannot be read ({error.strerror}). Name a trace file.") from None
    else:
        pipe = path if isinstance(path, Piped) else open_pipe(path)
        file, first, name = pipe.file, pipe.first, pipe.name
    if not first:
        file.close()
        raise InputError(f"{name} is empty. Record the trace again, and let the profiler finish writing it.")
    if first == SQLITE_MAGIC[:_MAGIC_BYTES]:
        file.close()
        raise InputError(f"{name} is a database, which is read from a disk only. Copy it to this machine.")
    if first.startswith(_GZIP_MAGIC):
        return _Gzip(file, first, name)
    return _Zstd(file, first, name) if first.startswith(_ZSTD_MAGIC) else Source(file, first)


def open_pipe(path: str | os.PathLike[str]) -> Piped:
    """Open a file of this machine, a pipe or standard input, and read the first bytes, which show what it is.

    Raises:
        InputError: it is missing, a folder or unreadable.
    """
    is_standard_input = os.fspath(path) == STANDARD_INPUT
    name = "standard input" if is_standard_input else os.fspath(path)
    if not is_standard_input:
        file = open_file(name)
    elif sys.stdin is None or sys.stdin.isatty():
        why = "closed" if sys.stdin is None else "a terminal"
        raise InputError(f"Standard input is {why}. Pipe a trace into it, or name a trace file.")
    else:
        file = FileIO(sys.stdin.fileno(), closefd=False)
    try:
        first = _first_bytes(file, 0.0 if is_standard_input else _WRITER_WAIT_S)
    except OSError as error:
        file.close()
        raise InputError(f"{name} cannot be read ({error.strerror}). Name a trace file.") from None
    return Piped(file, first, name)


def _first_bytes(file: FileIO, wait_s: float) -> bytes:
    """Return as many bytes as show what the file is, fewer where it ends before; later reads wait for data."""
    first = b""
    if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
        deadline = time.monotonic() + wait_s
        # A pipe without a writer reads as empty, one whose writer has nothing yet as None.
        while (found := file.read(_MAGIC_BYTES)) == b"" and time.monotonic() < deadline:
            time.sleep(0.05)
        first = found or b""
        if found == b"":
            return first
    os.set_blocking(file.fileno(), True)
    while len(first) < _MAGIC_BYTES and (more := file.read(_MAGIC_BYTES - len(first))):
        first += more
    return first
