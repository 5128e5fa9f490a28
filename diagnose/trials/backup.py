"""Copies the user's files before the first run, if nothing keeps a run from changing them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.model.files import printable
from diagnose.trials.copying import copy_file, remove_tree, shares_blocks
from diagnose.trials.surroundings import below

__all__ = ["back_up", "backup_place", "check_number"]

MAX_BYTES = 4 << 30  # of all files: more takes minutes to copy
FREE_SHARE = 2  # the disk must have this many times the size free
INSTEAD = (
    "Nothing on this system keeps a run from changing files outside its copy, so they are backed up first. Run prove "
    "in a smaller folder, or let the runs share the folder itself with --cwd-mode same, which protects no file."
)


def backup_place() -> Path:
    """Return the folder in which backups are made: of the user's state, which no reboot empties."""
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "diagnose")
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir(), "diagnose")


def check_number(folders: Iterable[str]) -> None:
    """Refuse folders that hold too many files to be looked at.

    Raises:
        UsageError: there is one.
    """
    for folder in folders:
        raise UsageError(f"The folder {printable(folder)} holds too many files to be backed up. {INSTEAD}")


def back_up(sizes: Mapping[str, int]) -> Path:
    """Copy files to a new folder, each below it by its full name; what cannot be read is left out.

    Raises:
        UsageError: they are too large, or there is no room.
    """
    place, folder = backup_place(), None
    try:
        place.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="saved-", dir=place)).resolve()
        _check_size(sizes, folder)
        for path in sizes:
            _copy(path, below(folder, Path(path)))
    except BaseException as error:
        if folder is not None:
            remove_tree(folder)
        if not isinstance(error, OSError):
            raise
        why = error.strerror or str(error)
        raise UsageError(f"The files could not be backed up to {printable(place)}: {why}. {INSTEAD}") from error
    return folder


def _check_size(sizes: Mapping[str, int], folder: Path) -> None:
    size, free = sum(sizes.values()), shutil.disk_usage(folder).free
    if size <= MAX_BYTES and size * FREE_SHARE <= free:
        return
    if not shares_blocks(max(sizes, key=lambda path: sizes[path]), folder):
        raise UsageError(
            f"The files that the runs could change hold {size / 1e9:.1f} GB; at most {MAX_BYTES / 1e9:.1f} GB are "
            f"backed up, and {printable(folder.parent)} has {free / 1e9:.1f} GB free. {INSTEAD}"
        )


def _copy(path: str, target: Path) -> None:
    if not os.access(path, os.R_OK):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):  # gone meanwhile
        copy_file(path, target)
