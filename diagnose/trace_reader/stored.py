"""Files that another process can open as well: on a disk, behind a URL, or a part of an archive that lies there."""

from __future__ import annotations

import errno
import os
import struct
from io import FileIO
from typing import Protocol

from diagnose.errors import InputError
from diagnose.model.frozen import dataclass
from diagnose.trace_reader.remote import RemoteFile, is_url, open_url

__all__ = ["DEFLATED", "Bytes", "Piped", "Stored", "open_bytes", "open_file"]

DEFLATED = 8  # the method in a zip's headers; 0: not compressed

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a zip's member: magic, …, lengths of the name and of the extra field
_LOCAL_MAGIC = b"PK\x03\x04"


class Bytes(Protocol):
    """A file as far as it is used: read forward and closed. Failing reads raise OSError."""

    def read(self, count: int, /) -> bytes | None:
        """Return the next bytes, at most ``count``."""

    def readinto(self, view: memoryview, /) -> int | None:
        """Fill ``view`` from its beginning; return the number of bytes, 0 at the end."""

    def close(self) -> None:
        """Close it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A file, or a member of an archive that is read in place: nothing is ever unpacked under a member's name."""

    path: str  # of the file, or of the archive that it is a part of; a URL too
    name: str  # as messages have it; its last part is the file's own name
    offset: int = 0  # where it begins, in a zip its local header
    size: int | None = None  # bytes as stored; None: to the end of the file
    method: int | None = None  # of a zip's member; None elsewhere
    checksum: int = 0  # of a zip's member

    def __str__(self) -> str:
        """Return the name."""
        return self.name


@dataclass(frozen=True, slots=True)
class Piped:
    """A stream that is open already and cannot go back: a pipe, or standard input."""

    file: FileIO
    first: bytes  # what was read from it to see what it is
    name: str

    def __str__(self) -> str:
        """Return the name."""
        return self.name


class _Part:
    """A range of a file's bytes."""

    def __init__(self, file: Bytes, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, count: int, /) -> bytes:
        data = self._file.read(min(count, self._left)) or b""
        self._count(len(data))
        return data

    def readinto(self, view: memoryview, /) -> int:
        count = self._file.readinto(view[: self._left]) or 0
        self._count(count)
        return count

    def _count(self, count: int) -> None:
        if not count and self._left:
            raise OSError(errno.EIO, "the archive ends within it")
        self._left -= count

    def close(self) -> None:
        self._file.close()


def open_file(name: str) -> FileIO:
    """Open a file of this machine without waiting for the other end of a named pipe.

    Raises:
        InputError: it is missing, a folder or unreadable.
    """
    try:
        return _open(name)
    except FileNotFoundError:
        raise InputError(f"{name} does not exist. Check the path.") from None
    except IsADirectoryError:
        raise InputError(f"{name} is a folder, not a trace file. Name one of the traces in it.") from None
    except PermissionError as error:
        raise InputError(f"{name} cannot be read ({error.strerror}). Check its permissions.") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{name} cannot be opened ({why}). Name a trace file.") from None


def _open(name: str) -> FileIO:
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return FileIO(descriptor)
    except OSError:
        os.close(descriptor)
        raise


def open_bytes(stored: Stored) -> Bytes:
    """Open what is stored, at its first byte.

    Raises:
        InputError: it is missing or unreadable.
    """
    file: FileIO | RemoteFile = open_url(stored.path) if is_url(stored.path) else open_file(stored.path)
    if stored.size is None:
        return file
    try:
        begin = stored.offset if stored.method is None else _data_begin(file, stored.offset)
        file.seek(begin)
    except OSError as error:
        file.close()
        raise InputError(f"{stored.name} cannot be read ({error.strerror}). Copy the archive again.") from None
    return _Part(file, stored.size)


def _data_begin(file: FileIO | RemoteFile, offset: int) -> int:
    """Return where the data of a zip's member begin: behind its header, whose length only the header has."""
    file.seek(offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size:
        raise OSError(errno.EIO, "the archive ends before it")
    magic, name, extra = _LOCAL_HEADER.unpack(header)
    if magic != _LOCAL_MAGIC:
        raise OSError(errno.EIO, "the archive's list of files is wrong")
    return offset + _LOCAL_HEADER.size + int(name) + int(extra)
