"""Writes files whole or not at all: under another name in the same folder, which they leave once they are on the disk.

The other name is locked while its writer lives. What a killed process left there is removed by the next write into the
folder. This module imports Python's own library only, and everything of this project that writes one file takes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["NewFile", "atomic_write", "move_new", "remove_leftovers"]

PRIVATE, PUBLIC = 0o600, 0o666  # modes, before the umask
NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES}  # FAT, some network file systems
HOST = f"{zlib.crc32(os.uname().nodename.encode()):08x}"
PARTIAL = re.compile(r"\.([0-9a-f]{8})-[0-9a-f]{16}\.partial")
MAX_SILENT_S = 86_400  # of a writer on another host: some network file systems show its lock to its own host only
STREAMS = re.compile(r"/dev/(fd/|std)|/proc/")  # links to what the process has open, a file as it may be


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield a file to write; its content is at ``path`` when the block ends without an error, and on the disk.

    As with `open`, a link is followed, and what is replaced keeps its mode and, as far as the process may set it, its
    owner. A device, a pipe, and a file in a folder that cannot be written are written in place.

    Raises:
        OSError: the file cannot be written; what was there before is still there.
    """
    target, found = Path(os.path.realpath(path)), _found(path)
    if found is not None and (not stat.S_ISREG(found.st_mode) or STREAMS.match(str(Path(path).absolute()))):
        with Path(path).open("wb") as stream:
            yield stream
        return
    try:
        new = NewFile(target)
    except PermissionError:
        if found is None:
            raise
        with target.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        return
    with new:
        yield new.file
        new.publish(force=True)


class NewFile:
    """A file that is written next to ``path`` and appears there whole, with `publish`; leaving the block cleans up.

    Writing may go on after `publish`. Errors of the file system come as OSError, FileExistsError if ``path`` has come
    into being. A ``private`` file is its owner's only. One that is not ``durable`` can be made again: it is not waited
    for until it is on the disk, and the folder, which may hold very many, is not searched for what others left.
    """

    def __init__(self, path: Path, *, private: bool = False, durable: bool = True) -> None:
        self._path, self._private, self._durable = path, private, durable
        if durable:
            remove_leftovers(path.parent)
        self._temporary: Path | None = None
        try:
            self._temporary, descriptor = _locked(path.parent, PRIVATE if private else PUBLIC)
        except OSError as error:
            error.filename = str(path)
            raise
        self.file: IO[bytes] = os.fdopen(descriptor, "wb")
        self._mode = stat.S_IMODE(os.fstat(descriptor).st_mode)  # as the umask and the folder's defaults have made it
        self._set_mode(self._mode & PRIVATE)

    def publish(self, *, force: bool) -> None:
        """Give the file its name; what has that name is replaced with ``force`` only, and lends its mode and owner."""
        if self._temporary is None:
            return
        self.file.flush()
        self._set_mode(self._replaced_mode() if force and not self._private else self._mode)
        if self._durable:
            os.fsync(self.file.fileno())
        if force:
            self._temporary.replace(self._path)
        else:
            move_new(self._temporary, self._path)
        self._temporary = None
        if self._durable:
            _sync_folder(self._path.parent)

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # what could not be written stays in the buffer and fails again
            self.file.close()
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)

    def _replaced_mode(self) -> int:
        """Return the mode of the file that is replaced, with its owner taken over; the own one if there is none."""
        try:
            found = self._path.lstat()
        except OSError:
            return self._mode
        if not stat.S_ISREG(found.st_mode):
            return self._mode
        own = os.fstat(self.file.fileno())
        for owner, group in ((found.st_uid, -1), (-1, found.st_gid)):
            if owner not in (-1, own.st_uid) or group not in (-1, own.st_gid):
                with contextlib.suppress(OSError):  # a right of the superuser, of a member of the group
                    os.fchown(self.file.fileno(), owner, group)
        return stat.S_IMODE(found.st_mode)

    def _set_mode(self, mode: int) -> None:
        with contextlib.suppress(PermissionError):  # FAT has no modes
            os.fchmod(self.file.fileno(), mode)


def move_new(source: Path, target: Path) -> None:
    """Rename a file to a name on the same file system that nothing has.

    Raises:
        FileExistsError: something has that name.
        OSError: it cannot be renamed.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))  # takes the name, or fails
        try:
            source.replace(target)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
    else:
        source.unlink()


def _found(path: str | os.PathLike[str]) -> os.stat_result | None:
    """Return what a path leads to, None if it leads to nothing."""
    try:
        return Path(path).stat()
    except FileNotFoundError:
        return None


def _locked(folder: Path, mode: int) -> tuple[Path, int]:
    """Make a file with a name of this kind, and lock it; return its descriptor too."""
    while True:
        path = folder / f".{HOST}-{os.urandom(8).hex()}.partial"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with contextlib.suppress(OSError):  # a file system without locks, where nothing is removed either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:  # else another process took it for a leftover before it was locked
            return path, descriptor
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove files that a writer left that is no more: their locks went with it."""
    try:
        names = [name for path in folder.iterdir() if (name := PARTIAL.fullmatch(path.name))]
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):  # it is locked, gone, or another user's
            descriptor = os.open(folder / name[0], os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if name[1] == HOST or time.time() - os.fstat(descriptor).st_mtime > MAX_SILENT_S:
                    (folder / name[0]).unlink()
            finally:
                os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems have no such call
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
