"""The working folder of the trials: a real copy of the user's, made once and put back before every run.

What a run writes, appends to, renames or removes there is its own.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.trials.copy_plan import CopyPlan, Entry
from diagnose.trials.copying import copy_file, remove_tree

__all__ = ["WorkingCopy"]

FOLDERS = ("folder", "copy")


class WorkingCopy:
    """A folder that looks like the user's before every run."""

    def __init__(self, plan: CopyPlan, path: Path) -> None:
        self.path = path
        self._plan = plan
        self._stamps: dict[str, tuple[int, ...]] = {}

    def restore(self) -> None:
        """Make the folder as planned: everything the first time, later only what a run has changed.

        A file counts as unchanged by its inode, size, mode and the times of its last change; the time of the last
        change of its inode cannot be set by a program.

        Raises:
            UsageError: it cannot be written: the disk is full, or a file has vanished or become unreadable.
        """
        if self.path.is_symlink() or not self.path.is_dir():
            remove_tree(self.path)
            self.path.mkdir(parents=True)
        try:
            present = self._tidied()
            for name, entry in self._plan.entries.items():
                if name not in present:
                    self._make(name, entry)
        except OSError as error:
            raise UsageError(
                f"The working folder could not be copied: {error.strerror or error}"
                f"{f' ({error.filename})' if error.filename else ''}; make room, set TMPDIR to a larger disk, or let "
                "the runs share the folder itself with --cwd-mode same."
            ) from error

    def remove(self) -> None:
        """Remove the folder."""
        remove_tree(self.path)

    def _make(self, name: str, entry: Entry) -> None:
        path = self.path / name
        match entry.kind:
            case "folder" | "copy":
                path.mkdir()
            case "file":
                copy_file(entry.source, path)
            case "link":
                path.symlink_to(entry.source)
            case "fifo":
                os.mkfifo(path, entry.mode)
            case "text":
                path.write_text(entry.source, encoding="utf-8")
        if entry.kind not in FOLDERS:
            self._stamps[name] = _stamp(path.lstat())

    def _tidied(self) -> set[str]:
        """Remove what the plan does not have and what was changed; return the names that are as they were."""
        present: set[str] = set()
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            here = self.path / folder
            if here.lstat().st_mode & stat.S_IRWXU != stat.S_IRWXU:
                here.chmod(0o700)
            with os.scandir(here) as found:
                children = list(found)
            for child in children:
                name = os.path.join(folder, child.name)  # this is done for every file before every run
                entry = self._plan.entries.get(name)
                is_folder = child.is_dir(follow_symlinks=False)
                if entry is None or (entry.kind in FOLDERS) is not is_folder:
                    remove_tree(Path(child.path))
                elif is_folder:
                    present.add(name)
                    waiting += [name] if entry.kind == "folder" else []
                elif _stamp(child.stat(follow_symlinks=False)) == self._stamps.get(name):
                    present.add(name)
                else:
                    remove_tree(Path(child.path))
        return present


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_size, found.st_mode, found.st_mtime_ns, found.st_ctime_ns
