"""Files that another process can open as well, on a disk or behind a URL.

A URL is opened by fsspec, in every store that it has a package for; nothing of it is imported before one is named.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from diagnose.errors import InputError, missing_extra
from diagnose.text.masking import mask_text
from diagnose.text.plain_text import middle, one_line

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_URL = r"[A-Za-z][A-Za-z0-9+.-]+(?:::[A-Za-z0-9+.-]+)*://"
SQLITE_MAGIC = b"SQLite format 3\0"
_PIPE_BLOCK_BYTES = 4 << 20  # fetched at a time, and held
_VERSIONS = ("ETag", "etag", "md5Hash", "crc32c", "content_md5")  # by store: S3, Google's and Azure's


def is_url(path: str) -> bool:
    """Return whether a path is the URL of a store, such as s3://bucket/run, and no file of this machine."""
    return bool(re.match(_URL, path))


class RemoteFile:
    """A file behind a URL: whatever its store raises while it is read becomes an OSError with a short reason."""

    def __init__(self, file: Any) -> None:  # a file of one of fsspec's many stores
        self._file = file

    def read(self, count: int = -1, /) -> bytes:
        """Return the next bytes, at most ``count``."""
        try:
            data: bytes = self._file.read(count)
        except Exception as error:
            raise OSError(errno.EIO, _why(error)) from None
        return data

    def readinto(self, view: memoryview, /) -> int:
        """Fill ``view`` from its beginning; return the number of bytes, 0 at the end."""
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close it."""
        self._file.close()


def is_folder(url: str) -> bool:
    """Return whether something lies below a URL.

    Raises:
        InputError: there is neither a file nor a folder, or the store does not answer.
    """
    system, path = _system(url)
    with _input_errors(url):
        if not system.exists(path):
            raise FileNotFoundError
        return bool(system.isdir(path))


def list_folder(url: str) -> list[str]:
    """Return the names of the files in a folder behind a URL.

    Raises:
        InputError: the store does not answer.
    """
    system, path = _system(url)
    with _input_errors(url):
        found = system.ls(path, detail=True)
    return [entry["name"].rstrip("/").rpartition("/")[2] for entry in found if entry["type"] == "file"]


def matching_urls(pattern: str) -> list[str]:
    """Return the URLs that match a pattern with ``*``, ``?`` or ``[``, sorted.

    Raises:
        InputError: the store does not answer.
    """
    system, path = _system(pattern)
    with _input_errors(pattern):
        return sorted(map(system.unstrip_protocol, system.glob(path)))


def version_of(url: str) -> str | None:
    """Return what a store keeps that changes with the content of a file, such as its ETag; None for nothing like it.

    Raises:
        InputError: the store does not answer.
    """
    system, path = _system(url)
    with _input_errors(url):
        found = system.info(path)
    return next((f"{name} {found[name]}" for name in _VERSIONS if found.get(name)), None)


def _system(url: str) -> tuple[AbstractFileSystem, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise missing_extra(f"{url} is at a URL", "remote") from None
    try:
        system, path = url_to_fs(url)
    except ImportError as error:  # fsspec is here, and the package of this store is not
        raise InputError(
            f"{url} cannot be opened: {_why(error)} For S3: pip install 'torch-diagnose[remote]'; "
            "for other stores, the package that fsspec names."
        ) from None
    except Exception as error:
        raise _cannot_open(url, error) from None
    return system, str(path)


@contextmanager
def _input_errors(url: str) -> Iterator[None]:
    """Turn what a store raises into one sentence: each store has errors of its own, and so have their clients."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{url} does not exist. Check the URL.") from None
    except Exception as error:
        raise _cannot_open(url, error) from None


def _cannot_open(url: str, error: Exception) -> InputError:
    return InputError(f"{url} cannot be opened ({_why(error)}). Check the URL and the store's credentials.")


def _why(error: Exception) -> str:
    return middle(one_line(mask_text(str(error))) or type(error).__name__, 200)


Bytes: TypeAlias = "FileIO | RemoteFile"


@dataclass(frozen=True, slots=True)
class Stored:
    """A file on a disk or behind a URL."""

    path: str
    name: str  # as messages have it; its last part is the file's own name
    process: int = 0  # of a database with several: the one to read, by its id there

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


def open_file(name: str) -> FileIO:
    """Open a file of this machine without waiting for the other end of a named pipe.

    Raises:
        InputError: it is missing, a folder or unreadable.
    """
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return FileIO(descriptor)
        except OSError:
            os.close(descriptor)
            raise
    except FileNotFoundError:
        raise InputError(f"{name} does not exist. Check the path.") from None
    except IsADirectoryError:
        raise InputError(f"{name} is a folder, not a trace file. Name one of the traces in it.") from None
    except PermissionError as error:
        raise InputError(f"{name} cannot be read ({error.strerror}). Check its permissions.") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{name} cannot be opened ({why}). Name a trace file.") from None


def is_database(path: str) -> bool:
    """Return whether a file of this machine is a database of SQLite, as profilers write it."""
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):  # a pipe, whose writer would see it opened and closed
            return False
        with FileIO(path) as file:
            return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except (OSError, ValueError):  # ValueError: a null character in the path
        return False


def open_bytes(stored: Stored) -> Bytes:
    """Open what is stored, at its first byte.

    Raises:
        InputError: it is missing or unreadable, or the package of its store is not installed.
    """
    if not is_url(stored.path):
        return open_file(stored.path)
    system, path = _system(stored.path)
    with _input_errors(stored.path):
        return RemoteFile(system.open(path, "rb", block_size=_PIPE_BLOCK_BYTES))
