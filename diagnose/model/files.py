"""Writes files of the user's choice: whole or not at all, and over something that exists only where that was asked for.

A file is written next to its target under a hidden name, readable by its owner only, and linked to its name when it is
complete: linking fails if the name is taken, also if another process took it a moment ago. `kernels._atomic_write` does
that, as it does for the files of remedies. A folder is reserved for one run from its start to its end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from diagnose.errors import OutputError, UsageError
from diagnose.kernels._atomic_write import PRIVATE, NewFile, move_new
from diagnose.text.plain_text import middle, one_line

__all__ = [
    "DISK_ERRORS", "SPACE", "NewFile", "Reservation", "cannot_write", "check_distinct", "check_file", "check_folder",
    "is_stream", "move_new", "open_private", "printable", "reason", "replace_private", "write_bytes", "write_file",
]  # fmt: skip


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


ELSEWHERE = "Choose a place that can be written."
SPACE = "Free some space or choose another place."
DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
REMEDIES = {
    errno.ENOSPC: SPACE,
    errno.EDQUOT: SPACE,
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f) or choose another place.",
    errno.EMFILE: "Raise the limit on open files (ulimit -n).",
    errno.ENFILE: "The system has too many open files; close some programs.",
    errno.EIO: "The disk has failed to write; choose another one.",
    errno.ENAMETOOLONG: "Give a shorter name.",
    errno.ENOENT: "Create its folder first.",
}


_OWN_PAGE = b'<meta name="generator" content="diagnose">'


def check_file(path: Path, *, force: bool) -> None:
    """Make sure that ``path`` can be written, without writing it.

    A symbolic link counts as a file that exists; ``force`` replaces the link and leaves alone what it leads to. A page
    of ours can be made again, so that another takes its place without ``force``.

    Raises:
        OutputError: it exists already and ``force`` is off, it is no place for a file, or cannot be written.
    """
    name = printable(path)
    try:
        mode = _mode(path)
        if mode is not None and stat.S_ISDIR(mode):
            raise OutputError(f"{name} is a folder; name a file in it.")
        if mode is not None and (stat.S_ISBLK(mode) or stat.S_ISSOCK(mode)):
            raise OutputError(f"{name} is a disk or a socket, which is never written to; name a file.")
        if is_stream(path):
            return
        if os.path.lexists(path) and not force and not _is_own_page(path):
            raise _exists_already(path)
        folder = printable(path.parent)
        if not path.parent.is_dir():
            what = "is not a folder; name one" if os.path.lexists(path.parent) else "does not exist; create it first"
            subject = folder if os.path.lexists(path.parent) else f"the folder {folder}"
            raise OutputError(f"{printable(path)} cannot be written: {subject} {what}.")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise OutputError(
                f"{printable(path)} cannot be written: the folder {folder} is not writable; choose another one."
            )
    except (OSError, ValueError) as error:
        raise cannot_write(path, error) from error


def write_file(path: str | os.PathLike[str], text: str, *, force: bool) -> None:
    """Write a file whole or not at all; what exists is replaced with ``force`` only, when the new file is complete.

    Into a pipe or a terminal is written as it is.

    Raises:
        OutputError: the file exists already and ``force`` is off, or it cannot be written.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"), force=force)  # names of files need not be UTF-8


def write_bytes(path: str | os.PathLike[str], data: bytes, *, force: bool) -> None:
    """Write bytes as ``write_file`` does text.

    Raises:
        OutputError: the file exists already and ``force`` is off, or it cannot be written.
    """
    path = Path(path)
    check_file(path, force=force)
    try:
        if is_stream(path):
            with path.open("wb") as stream:
                stream.write(data)
            return
        with NewFile(path) as new:
            new.file.write(data)
            new.publish(force=force or _is_own_page(path))
    except FileExistsError as error:
        raise _exists_already(path) from error
    except OSError as error:
        raise cannot_write(path, error) from error


def replace_private(path: Path, data: bytes) -> None:
    """Write a file that its owner alone can read, whole or not at all, in the place of an earlier one.

    Raises:
        OSError: it cannot be written; an earlier one is still there.
    """
    with NewFile(path, private=True) as new:
        new.file.write(data)
        new.publish(force=True)


def open_private(path: Path) -> IO[bytes]:
    """Open a new file that its owner alone can read.

    Raises:
        OSError: it cannot be made, or is there.
    """
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb")


def check_folder(folder: Path, *, force: bool) -> None:
    """Make sure that nothing in a folder is lost or mixed with another's; it need not exist.

    Raises:
        OutputError: it holds something and ``force`` is off, or it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{printable(folder)} is a file; name a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise OutputError(f"The folder {printable(folder)} is not empty; name another, or add to it with --force.")


def is_stream(path: Path) -> bool:
    """Return whether ``path`` is a pipe, a terminal or another device that takes bytes, which no file may replace."""
    mode = _mode(path)
    return mode is not None and (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode))


def cannot_write(path: str | os.PathLike[str], error: OSError | ValueError) -> OutputError:
    """Return the error for a path that the system refused."""
    return OutputError(f"{printable(path)} cannot be written: {reason(error)}")


def reason(error: OSError | ValueError) -> str:
    """Return why the system refused to write, and what to do: two short sentences."""
    if not isinstance(error, OSError):
        return f"{error}. Give another name."
    return f"{error.strerror or type(error).__name__}. {REMEDIES.get(error.errno or 0, ELSEWHERE)}"


def printable(path: str | os.PathLike[str]) -> str:
    """Return a path as a message shows it: on one line, the middle of a very long one left out."""
    return middle(one_line(str(path)), 160)


def _is_own_page(path: Path) -> bool:
    """Return whether a path is an HTML page that we wrote, itself and not by a link."""
    try:
        if path.is_symlink() or not path.is_file():
            return False
        with path.open("rb") as file:
            return _OWN_PAGE in file.read(4096).partition(b"<title>")[0]
    except OSError:
        return False


def _exists_already(path: Path) -> OutputError:
    return OutputError(f"{printable(path)} exists already; give another name, or --force to overwrite it.")


def _mode(path: Path) -> int | None:
    """Return the mode of what a path leads to, None where it leads to nothing."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # links in a circle lead to nothing
            return None
        raise


def check_distinct(options: Mapping[str, str | None], inputs: Iterable[str | Path] = ()) -> None:
    """Make sure that no two options name one file to write, and none a file that is read.

    Raises:
        UsageError: two of them do.
    """
    named = [(option, Path(name)) for option, name in options.items() if name and name != "-"]
    for i, (option, path) in enumerate(named):
        for other, earlier in named[:i]:
            if _same(path, earlier):
                raise UsageError(f"{other} and {option} both name {printable(path)}; leave one of them out.")
        if any(_same(path, Path(read)) for read in inputs):
            raise UsageError(f"{option} names {printable(path)}, which is read; give it another name.")


def _same(path: Path, other: Path) -> bool:
    """Return whether two names are of one file; a device may take several outputs."""
    try:
        return path.samefile(other) and path.is_file()
    except OSError:  # one is not there yet
        return os.path.realpath(path) == os.path.realpath(other)
