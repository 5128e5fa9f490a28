"""Results that were computed before, found again by the content of the files that they rest on.

A key is made of the bytes of every file of a rank, of what was asked, and of this program's own files: a changed trace,
option or version has another key, so nothing has to be invalidated. Entries lie in the user's cache folder, readable by
the user alone. Each is written beside its place and renamed, so any number of processes may read and write at once. One
that is damaged counts as absent. Where the folder cannot be used, everything is computed, and nothing else changes.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path
from typing import TYPE_CHECKING

from isal import isal_zlib

from diagnose.errors import InputError, is_debugging
from diagnose.model.files import replace_private
from diagnose.model.plugins import installed
from diagnose.trace_reader.inputs import RankFiles, files_of
from diagnose.trace_reader.stored import Piped, Stored, is_url, open_bytes, version_of

if TYPE_CHECKING:
    from hashlib import blake2b

__all__ = ["NO_CACHE", "Cache", "default_cache", "digest_of", "sum_of"]

NO_CACHE = "DIAGNOSE_NO_CACHE"  # the environment variable that turns the cache off
FOLDER = "diagnose"
MAX_BYTES = 256 << 20  # of all entries together
MAX_ENTRIES = 50_000
MAX_ENTRY_BYTES = 16 << 20  # a result with its charts has some hundred kB
TIDY_AT = ("00", "01", "02", "03")  # begins of a key: every 64th result that is stored looks whether all fit
LEFT_SHARE = 0.8  # of the bounds, that is left when one is passed: the next writer need not tidy up again

_SUM_BYTES, _KEY_BYTES = 16, 20
_READ_BYTES = 1 << 20
# The checksum of each block is hashed, not each byte: 10 to 20 times as fast as a hash of cryptography, which nobody
# needs here. A change within one block is missed in one of 4 billion cases, one over several blocks never.
_BLOCK_BYTES = 1 << 16
_OTHERS_MAY_WRITE = 0o022


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of results."""

    folder: Path

    def get(self, key: str) -> bytes | None:
        """Return what was stored under a key, None where nothing is or it is damaged."""
        path = self.folder / key
        try:
            entry = path.read_bytes()
            if sum_of(entry[_SUM_BYTES:]) != entry[:_SUM_BYTES]:
                path.unlink()
                return None
            os.utime(path)  # the entries that were not used for longest go first
        except OSError:
            return None
        return entry[_SUM_BYTES:]

    def put(self, key: str, data: bytes) -> None:
        """Store a result; where that is not possible, it is not stored."""
        if len(data) <= MAX_ENTRY_BYTES:
            with contextlib.suppress(OSError):
                replace_private(self.folder / key, sum_of(data) + data)
        if key.startswith(TIDY_AT):
            self.trim()

    def trim(self) -> None:
        """Remove the entries that were not used for longest, where all together are too large."""
        with contextlib.suppress(OSError):
            entries = sorted(_entries(self.folder), reverse=True)
            size = sum(num_bytes for _, num_bytes, _ in entries)
            if size <= MAX_BYTES and len(entries) <= MAX_ENTRIES:
                return
            kept = 0
            for position, (_, num_bytes, path) in enumerate(entries):
                kept += num_bytes
                if kept > LEFT_SHARE * MAX_BYTES or position >= LEFT_SHARE * MAX_ENTRIES:
                    path.unlink(missing_ok=True)

    def key(self, what: str, *files: RankFiles) -> str | None:
        """Return the key of a result of these files; None where one of them can be read only once.

        Raises:
            InputError: a file cannot be read.
        """
        parts = [_program(), what]
        for rank in files:
            for file in files_of(rank):
                digest = None if isinstance(file, Piped) else digest_of(file)
                if digest is None:
                    return None
                parts += [str(file), digest]
        return _hash("\0".join(parts).encode("utf-8", "surrogateescape"), _KEY_BYTES).hexdigest()


def default_cache() -> Cache | None:
    """Return the user's cache, None where it is turned off or its folder is not the user's alone."""
    if os.environ.get(NO_CACHE) or is_debugging():
        return None
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (base if base.is_absolute() else Path.home() / ".cache") / FOLDER
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except (OSError, RuntimeError):
        return None
    is_safe = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_MAY_WRITE
    return Cache(folder) if is_safe else None


def digest_of(file: Stored) -> str | None:
    """Return what stands for the bytes of a file; None for a URL of a store that keeps no such thing.

    Raises:
        InputError: it cannot be read.
    """
    if is_url(file.path):
        version = version_of(file.path)
        return version and f"{version} {file.offset} {file.size}"
    digest, buffer = _hash(), memoryview(bytearray(_READ_BYTES))
    with contextlib.closing(open_bytes(file)) as stream:
        try:
            while count := stream.readinto(buffer):
                for begin in range(0, count, _BLOCK_BYTES):
                    block = buffer[begin : min(begin + _BLOCK_BYTES, count)]
                    digest.update(b"%d %d " % (len(block), isal_zlib.crc32(block)))
        except OSError as error:
            raise InputError(f"{file} cannot be read ({error.strerror}). Name a trace file.") from None
    return digest.hexdigest()


def sum_of(data: bytes) -> bytes:
    """Return what stands for these bytes."""
    return _hash(data).digest()


def _hash(data: bytes = b"", num_bytes: int = _SUM_BYTES) -> blake2b:
    import hashlib  # brings OpenSSL: 3.5 MB that an answer without the cache does not need

    return hashlib.blake2b(data, digest_size=num_bytes)


def _entries(folder: Path) -> Iterator[tuple[float, int, Path]]:
    with os.scandir(folder) as found:
        for entry in found:
            with contextlib.suppress(FileNotFoundError):  # another process tidies up as well
                state = entry.stat(follow_symlinks=False)
                yield state.st_mtime, state.st_size, folder / entry.name


@once
def _program() -> str:
    """Return what stands for this program: sizes and times of its files, since a checkout changes between versions."""
    import diagnose

    digest = _hash(diagnose.__version__.encode())
    for name, size, changed in sorted(_sources(str(Path(diagnose.__file__).parent))):
        digest.update(os.fsencode(f"{name} {size} {changed}\n"))
    for plugin in installed("diagnose.analyzers", "diagnose.changes"):
        digest.update(plugin.encode())
    return digest.hexdigest()


def _sources(folder: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as found:
        for entry in found:
            if entry.is_dir() and entry.name != "__pycache__":
                yield from _sources(entry.path)
            elif entry.name.endswith(".py"):
                state = entry.stat()
                yield entry.path, state.st_size, state.st_mtime_ns
