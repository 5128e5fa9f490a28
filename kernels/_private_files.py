"""Folders and files that only this user can write: what is loaded from them can run code.

The check and the use are of the same file: a name is opened without following links, and what was opened is looked at.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

__all__ = ["check_folder", "make_private", "open_private"]

WRITABLE = stat.S_IWGRP | stat.S_IWOTH
MAX_LINKS = 40  # as Linux has it for one path


def make_private(folder: Path) -> None:
    """Make the folder for this user alone unless it is there, and check it and every folder above.

    Raises:
        PermissionError: another user owns, can write or can replace it; or it is a link.
        OSError: it cannot be made.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    check_folder(folder)
    _check_above(folder)


def check_folder(folder: Path) -> os.stat_result:
    """Return what describes the folder, which is this user's own and nobody else's to write.

    Raises:
        PermissionError: it is not; or it is a link, or no folder.
    """
    descriptor = _opened(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    _check(folder, found)
    return found


def open_private(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file of this user that nobody else can write; what ``flags`` creates is for this user alone.

    Raises:
        FileNotFoundError: there is none.
        PermissionError: the file is another user's, others can write it, or it is a link or no file.
    """
    descriptor = _opened(path, flags | os.O_NONBLOCK)  # a pipe in its place must not hold the process up
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{path} is not a regular file, and nothing is loaded from it; remove it.")
        _check(path, found)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _opened(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        if path.is_symlink():
            raise PermissionError(f"{path} is a link, and nothing is loaded through it; name its target.") from error
        if isinstance(error, (NotADirectoryError, IsADirectoryError)):
            raise PermissionError(f"{path} is in the place of a cache; remove it, or name another folder.") from error
        raise


def _check(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise PermissionError(
            f"{path} belongs to another user (uid {found.st_uid}), who could have code run here; name a folder of your "
            "own."
        )
    if found.st_mode & WRITABLE:
        raise PermissionError(
            f"Other users can write {path} (mode {stat.S_IMODE(found.st_mode):04o}), and what is loaded from it could "
            f"run code; take that right away (chmod go-w) if its content is yours, or name another folder."
        )


def _check_above(folder: Path) -> None:
    """Check every folder and link on the way: who may rename one of them may put another in its place."""
    whole = Path(os.path.normpath(folder.absolute()))  # resolve() would follow the links
    left, at, links = list(reversed(whole.parts[1:])), Path("/"), 0
    while left:
        part = left.pop()
        if part == "..":
            at = at.parent
            continue
        found = (at / part).lstat()
        if found.st_uid not in {0, os.geteuid()}:
            raise PermissionError(
                f"{at / part}, above the cache folder {folder}, belongs to another user (uid {found.st_uid}), who "
                "could replace the cache; name a folder elsewhere."
            )
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > MAX_LINKS:
                raise PermissionError(f"{folder} leads through more than {MAX_LINKS} links; name its target.")
            target = (at / part).readlink()
            if target.is_absolute():
                at = Path("/")
            left += reversed([piece for piece in target.parts if piece != "/"])
            continue
        at /= part
        if found.st_mode & WRITABLE and not found.st_mode & stat.S_ISVTX:
            raise PermissionError(
                f"Other users can write {at} (mode {stat.S_IMODE(found.st_mode):04o}), above the cache folder {folder} "
                "and could replace the cache; name a folder elsewhere, or set the sticky bit (chmod +t)."
            )
