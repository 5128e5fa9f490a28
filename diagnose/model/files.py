"""Writes files of the user's choice: whole or not at all, and over something that exists only where that was asked for.

A file is written next to its target under a hidden name, readable by its owner only, and linked to its name when it is
complete: linking fails if the name is taken, also if another process took it a moment ago. `kernels._atomic_write` does
that, as it does for the files of remedies.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from diagnose.errors import OutputError, UsageError
from diagnose.kernels._atomic_write import PRIVATE, NewFile, move_new
from diagnose.text.plain_text import middle, one_line

__all__ = [
    "DISK_ERRORS",
    "SPACE",
    "NewFile",
    "cannot_write",
    "check_distinct",
    "check_file",
    "is_stream",
    "move_new",
    "open_private",
    "printable",
    "reason",
    "replace_private",
    "write_bytes",
    "write_file",
]

MAX_PATH_CHARS = 160  # characters of a path in a message
SYSTEM_FOLDERS = (Path("/dev"), Path("/proc"))  # a new file among devices is a mistake, except in SHARED_MEMORY
SHARED_MEMORY = Path("/dev/shm")  # a tmpfs
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


def check_file(path: Path, *, force: bool) -> None:
    """Make sure that ``path`` can be written, without writing it.

    A symbolic link counts as a file that exists; ``force`` replaces the link and leaves alone what it leads to.

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
        if _is_among_devices(path):
            raise OutputError(f"{name} lies in a folder of the system; name a file elsewhere.")
        if os.path.lexists(path) and not force:
            raise _exists_already(path)
        _check_folder(path)
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
            new.publish(force=force)
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
    return middle(one_line(str(path)), MAX_PATH_CHARS)


def _exists_already(path: Path) -> OutputError:
    return OutputError(f"{printable(path)} exists already; give another name, or --force to overwrite it.")


def _check_folder(path: Path) -> None:
    folder = printable(path.parent)
    if not path.parent.is_dir():
        what = "is not a folder; name one" if os.path.lexists(path.parent) else "does not exist; create it first"
        subject = folder if os.path.lexists(path.parent) else f"the folder {folder}"
        raise OutputError(f"{printable(path)} cannot be written: {subject} {what}.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(
            f"{printable(path)} cannot be written: the folder {folder} is not writable; choose another one."
        )


def _is_among_devices(path: Path) -> bool:
    folder = path.parent.resolve()
    return SHARED_MEMORY not in (folder, *folder.parents) and any(
        place in (folder, *folder.parents) for place in SYSTEM_FOLDERS
    )


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
