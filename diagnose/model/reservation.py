"""Keeps a folder for one run, from its start to its end, so that two runs never write into the same one."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from types import TracebackType

__all__ = ["Reservation"]

NEW_MODE = 0o1700  # the sticky bit marks a folder that was made and not locked yet: whoever locks it removes it again


class Reservation:
    """Keeps a place for one run: the folder is made if it is not there, and it or a file in it is locked.

    The lock ends with the process, however it ends; a file system without locks has none. Leaving the block, or
    ``release``, removes the folders that were made and are still empty.

    Raises:
        BlockingIOError: another run keeps the place, and this one ``must`` have it for itself.
        OSError: the folder cannot be made.
    """

    def __init__(self, folder: Path, *, lock_name: str | None = None, must: bool = True) -> None:
        self.folder = folder
        self.made: list[Path] = []  # the outermost first
        self.is_held = True  # as far as the file system has locks
        self._file = None if lock_name is None else folder / lock_name
        self._lock: int | None = None
        self._id: tuple[int, int] | None = None
        try:
            self._take(must=must)
        except BaseException:
            self.release()
            raise

    def _take(self, *, must: bool) -> None:
        while True:
            self._make()
            try:
                self._lock = _locked(self._file or self.folder, create=self._file is not None)
            except FileNotFoundError:  # another run has given the folder up in between
                continue
            except BlockingIOError:
                self.made = []  # whoever keeps the place has the folders too, which may still be empty
                if must:
                    raise
                self.is_held = False
                return
            self._own_new()
            if self._lock is None:
                return
            found = os.fstat(self._lock)
            self._id = (found.st_dev, found.st_ino)
            if self._is_current():
                return
            os.close(self._lock)  # what was locked has been replaced or removed in between
            self._lock = None

    def _make(self) -> None:
        missing = [self.folder] if not os.path.lexists(self.folder) else []
        if missing:
            missing += [parent for parent in self.folder.parents if not os.path.lexists(parent)]
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=NEW_MODE if folder == self.folder else 0o777)
                self.made.append(folder)
        if not self.folder.is_dir() and os.path.lexists(self.folder):  # else it was given up: the lock shows it
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.folder))

    def _own_new(self) -> None:
        """Take a folder that no run has locked yet as made by this one, although another may have been first."""
        with contextlib.suppress(OSError):
            if stat.S_IMODE(self.folder.stat().st_mode) == NEW_MODE:
                self.folder.chmod(0o700)
                if self.folder not in self.made:
                    self.made.append(self.folder)

    def _is_current(self) -> bool:
        try:
            found = (self._file or self.folder).stat()
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == self._id

    def release(self) -> None:
        """Give the place up; what lies in it stays."""
        if self._file is not None and self._lock is not None and self._is_current():
            self._file.unlink(missing_ok=True)
        if self._lock is not None:
            with contextlib.suppress(OSError):  # a script that becomes a daemon closes every file
                found = os.fstat(self._lock)
                if (found.st_dev, found.st_ino) == self._id:
                    os.close(self._lock)
            self._lock = None
        for folder in reversed(self.made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        self.made = []

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def _locked(path: Path, *, create: bool) -> int | None:
    """Return the descriptor that holds the lock, None where the file system has no locks."""
    import fcntl  # not on Windows, where nothing is traced

    flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
