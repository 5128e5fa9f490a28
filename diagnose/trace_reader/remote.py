"""Files and folders behind a URL, by fsspec: every store that it has a package for."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from diagnose.errors import InputError, missing_extra
from diagnose.text.masking import mask_text
from diagnose.text.patterns import lazy_pattern
from diagnose.text.plain_text import middle, one_line

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["RemoteFile", "is_folder", "is_url", "list_folder", "matching_urls", "open_url", "version_of"]

_URL = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]+(?:::[A-Za-z0-9+.-]+)*://")
_BLOCK_BYTES = 4 << 20  # fetched at a time, and held
_VERSIONS = ("ETag", "etag", "md5Hash", "crc32c", "content_md5")  # by store: S3, Google's and Azure's
_MAX_WHY_CHARS = 200  # of what a store answered


def is_url(path: str) -> bool:
    """Return whether a path is the URL of a store, such as s3://bucket/run, and no file of this machine."""
    return bool(_URL.match(path))


class RemoteFile:
    """A file behind a URL: whatever its store raises while it is read becomes an OSError with a short reason."""

    def __init__(self, file: Any) -> None:  # a file of one of fsspec's many stores
        self._file = file

    def read(self, count: int = -1, /) -> bytes:
        """Return the next bytes, at most ``count``."""
        with _store_errors():
            data: bytes = self._file.read(count)
            return data

    def readinto(self, view: memoryview, /) -> int:
        """Fill ``view`` from its beginning; return the number of bytes, 0 at the end."""
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a place; return it."""
        with _store_errors():
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """Return the place."""
        return int(self._file.tell())

    def seekable(self) -> bool:
        """Return whether the store can answer a range of bytes."""
        return bool(self._file.seekable())

    def close(self) -> None:
        """Close it."""
        self._file.close()


def open_url(url: str) -> RemoteFile:
    """Open a file behind a URL.

    Raises:
        InputError: it cannot be opened, or the store's package is not installed.
    """
    system, path = _system(url)
    with _input_errors(url):
        return RemoteFile(system.open(path, "rb", block_size=_BLOCK_BYTES))


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
        raise missing_extra(f"{url} lies behind a URL", "remote") from None
    try:
        system, path = url_to_fs(url)
    except ImportError as error:  # fsspec is here, and the package of this store is not
        raise InputError(
            f"{url} cannot be opened: {_why(error)} For S3: pip install 'diagnose[remote]'; "
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


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise OSError(errno.EIO, _why(error)) from None


def _why(error: Exception) -> str:
    return middle(one_line(mask_text(str(error))) or type(error).__name__, _MAX_WHY_CHARS)
