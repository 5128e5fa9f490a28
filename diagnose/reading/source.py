"""The bytes of a trace file, decompressed where they are gzip, whatever the file's name says."""

from __future__ import annotations

import os
from io import FileIO
from types import TracebackType
from typing import Protocol

from isal import isal_zlib

from diagnose.errors import InputError

__all__ = ["Source", "open_source"]

_GZIP_MAGIC = b"\x1f\x8b"
_COMPRESSED_CHUNK = 1 << 16
_GZIP_WINDOW = 31  # zlib's code for a gzip header and the largest window


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
    def __init__(self, file: FileIO) -> None:
        self._file = file
        self.raw_bytes = 0
        self.fault = ""

    def __enter__(self) -> _Plain:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def readinto(self, view: memoryview) -> int:
        count = self._file.readinto(view)
        self.raw_bytes += count
        return count


class _Gzip(_Plain):
    """Several members after another are one stream; a damaged or cut member ends it with a ``fault``."""

    def __init__(self, file: FileIO) -> None:
        super().__init__(file)
        self._inflater = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
        self._input = b""
        self._done = False

    def readinto(self, view: memoryview) -> int:
        while not self._done:
            data = self._inflate(len(view))
            if data:
                view[: len(data)] = data
                self.raw_bytes += len(data)
                return len(data)
        return 0

    def _inflate(self, limit: int) -> bytes:
        if not self._input:
            self._input = self._file.read(_COMPRESSED_CHUNK)
            if not self._input:
                self.fault = "its compressed data stop early"
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

    def _next_member(self) -> None:
        self._input = self._inflater.unused_data or self._file.read(_COMPRESSED_CHUNK)
        self._inflater = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
        # Padding or foreign bytes after a complete member are not data of the trace.
        self._done = not self._input.startswith(_GZIP_MAGIC)


def open_source(path: str | os.PathLike[str]) -> Source:
    """Open a trace file.

    Raises:
        InputError: the file is missing, a folder, unreadable or empty.
    """
    try:
        file = FileIO(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist. Check the path.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, not a trace file. Name one of the traces in it.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}). Check its permissions.") from None
    magic = file.read(2)
    if not magic:
        file.close()
        raise InputError(f"{path} is empty. Record the trace again, and let the profiler finish writing it.")
    file.seek(0)
    return _Gzip(file) if magic == _GZIP_MAGIC else _Plain(file)
