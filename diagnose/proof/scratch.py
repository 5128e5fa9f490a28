"""A working folder for a trial: the script finds its files there, and what it writes does not touch the user's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from diagnose.errors import UsageError

__all__ = ["mirror"]

MOST_ENTRIES = 20_000
COPIED_MB = 16.0  # larger files are data: linked, as scripts read them
MOST_COPIED_MB = 512.0
LINKED_FOLDERS = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache"})


def mirror(source: Path, target: Path) -> None:
    """Make ``target`` look like ``source``: folders anew, small files copied, large files and tool folders linked.

    Raises:
        UsageError: the folder holds more than can be mirrored for every run.
    """
    left, copied = MOST_ENTRIES, 0.0
    for folder, names, files in os.walk(source):
        here = target / Path(folder).relative_to(source)
        here.mkdir(parents=True, exist_ok=True)
        for name in [n for n in names if n in LINKED_FOLDERS or _is_within(target, Path(folder) / n)]:
            names.remove(name)
            if not _is_within(target, Path(folder) / name):
                (here / name).symlink_to(Path(folder, name).absolute())
        left -= len(names) + len(files)
        for name in files:
            path = Path(folder, name)
            size = path.stat().st_size / 1e6 if path.is_file() else 0.0
            if not path.is_file() or size > COPIED_MB:
                (here / name).symlink_to(path.absolute())
            else:
                copied += size
                shutil.copy2(path, here / name)
        if left < 0 or copied > MOST_COPIED_MB:
            raise UsageError(
                f"The folder {source} holds too much to copy for every run "
                f"(over {MOST_ENTRIES} entries or {MOST_COPIED_MB:g} MB); run prove from a smaller folder, "
                "or let the runs share it with --cwd-mode same."
            )


def _is_within(inner: Path, outer: Path) -> bool:
    return inner == outer or outer in inner.parents
