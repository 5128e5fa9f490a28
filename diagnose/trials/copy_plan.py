"""Decides for every name of the working folder what stands for it in the copy that trials run in.

Nothing in the copy is a hard link, and a link leads to the user's files only where it has to: folders of tools, and
large data that lies outside the folder.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from diagnose.errors import UsageError
from diagnose.trials.copying import shares_blocks

__all__ = ["LEFT_OUT", "MAX_ENTRIES", "CopyPlan", "Entry", "is_environment", "plan_copy"]

MAX_ENTRIES = 200_000
MAX_COPIED_BYTES = 32 << 30  # more takes minutes to copy, and a budget is ten
FREE_SHARE = 2  # the disk must have this many times the size of the copy free: the runs write there too
ANNOUNCED_BYTES, ANNOUNCED_FILES = 256_000_000, 5_000  # what is smaller is copied at once
LINKED_FILE_BYTES = 16 << 20  # a smaller file outside the folder that a link of the user's leads to is copied
LINKED_FOLDER_BYTES, LINKED_FOLDER_ENTRIES = 64 << 20, 1_000  # a smaller folder too

LEFT_OUT = frozenset({".mypy_cache", ".ruff_cache", ".pytest_cache", ".tox", ".nox", ".hypothesis"})
ENVIRONMENTS = frozenset({".venv", "venv", "node_modules"})
ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
GIT_OBJECTS = ".git/objects"

Kind = Literal["folder", "file", "link", "fifo", "text", "copy"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in the copy."""

    kind: Kind  # copy: a folder that is kept by another plan
    source: str  # the file to copy, where the link leads, or the text to write
    mode: int = 0o600


@dataclass
class CopyPlan:
    """What a copy of ``source`` consists of."""

    source: Path
    entries: dict[str, Entry] = field(default_factory=dict)  # by path within the copy; a folder before what it holds
    num_bytes: int = 0
    num_files: int = 0
    linked: list[Path] = field(default_factory=list)  # the user's own files and folders that links of the copy lead to
    unreadable: list[str] = field(default_factory=list)
    largest: tuple[int, str] = (0, "")

    def kind_of(self, original: Path) -> Kind | None:
        """Return what stands for a file in a copy whose root stands for the root of the file system."""
        entry = self.entries.get(str(original.relative_to(original.anchor)))
        return entry.kind if entry is not None else None

    @property
    def is_large(self) -> bool:
        """Return whether copying takes long enough to be announced."""
        return self.num_bytes > ANNOUNCED_BYTES or self.num_files > ANNOUNCED_FILES

    @property
    def size_text(self) -> str:
        """Return the size of the copy as one reads it."""
        size = self.num_bytes
        text = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size:,} bytes"
        return f"{text} in {self.num_files:,} file{'' if self.num_files == 1 else 's'}"


def is_environment(path: Path) -> bool:
    """Return whether the folder holds installed packages: a virtual environment of Python or node."""
    return path.name in ENVIRONMENTS or any((path / mark).exists() for mark in ENVIRONMENT_MARKS)


def plan_copy(source: Path, *, without: Sequence[Path] = (), target: Path | None = None) -> CopyPlan:
    """Look through the folder and decide for every name what stands for it in the copy; nothing is copied yet.

    Args:
        source: The working folder.
        without: Folders that are left out, such as the one that the copy goes to.
        target: Where the copy will lie, to see whether there is room; the temporary folder unless given.

    Raises:
        UsageError: the folder holds too much to be copied.
    """
    plan = _Planner(source, without).run()
    _check_room(plan, target or Path(tempfile.gettempdir()))
    return plan


class _Planner:
    def __init__(self, source: Path, without: Sequence[Path]) -> None:
        self._plan = CopyPlan(source)
        self._root = os.path.realpath(source)
        self._without = {os.path.realpath(path) for path in without}

    def run(self) -> CopyPlan:
        waiting = [("", self._root)]
        while waiting:
            name, folder = waiting.pop()
            for child in self._children(folder):
                below = os.path.join(name, child.name)
                waiting += self._add(below, child, inside=_is_within(folder, self._root))
            if len(self._plan.entries) > MAX_ENTRIES:
                raise _too_much(self._plan.source, f"over {MAX_ENTRIES:,} names")
        self._lend_git_objects()
        return self._plan

    def _children(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as found:
                return sorted(found, key=lambda child: child.name)
        except OSError:
            self._plan.unreadable.append(folder)
            return []

    def _add(self, name: str, child: os.DirEntry[str], *, inside: bool) -> list[tuple[str, str]]:
        """Plan one name; return the folder to look through next, if it is one."""
        try:
            found = child.stat(follow_symlinks=False)
        except OSError:  # gone meanwhile
            return []
        if stat.S_ISLNK(found.st_mode):
            return self._add_link(name, child.path, inside=inside)
        if stat.S_ISDIR(found.st_mode):
            return self._add_folder(name, child.path)
        if stat.S_ISREG(found.st_mode):
            self._add_file(name, child.path, found)
        elif stat.S_ISFIFO(found.st_mode):
            self._plan.entries[name] = Entry("fifo", "", stat.S_IMODE(found.st_mode))
        return []  # a socket or a device has no content to copy

    def _add_folder(self, name: str, path: str) -> list[tuple[str, str]]:
        if Path(path).name in LEFT_OUT or path in self._without or name == GIT_OBJECTS:
            return []
        if is_environment(Path(path)):
            self._add_outside(name, path)
            return []
        self._plan.entries[name] = Entry("folder", path)
        return [(name, path)]

    def _add_file(self, name: str, path: str, found: os.stat_result) -> None:
        if not os.access(path, os.R_OK):
            self._plan.unreadable.append(path)
            return
        size = min(found.st_size, found.st_blocks * 512) if found.st_size > LINKED_FILE_BYTES else found.st_size
        self._plan.entries[name] = Entry("file", path)
        self._plan.num_files += 1
        self._plan.num_bytes += size
        self._plan.largest = max(self._plan.largest, (size, path))

    def _add_link(self, name: str, path: str, *, inside: bool) -> list[tuple[str, str]]:
        """Plan a link: within the folder it stays one; what it leads to outside is copied where it is small."""
        real = os.path.realpath(path)
        if inside and _is_within(real, self._root):
            here = os.path.dirname(name)
            text = os.path.relpath(os.path.relpath(real, self._root), here or ".")
            self._plan.entries[name] = Entry("link", text)
            return []
        try:
            found = Path(real).stat()
        except OSError:  # a dangling link: a script could make the file
            self._add_outside(name, real)
            return []
        if stat.S_ISREG(found.st_mode) and found.st_size <= LINKED_FILE_BYTES:
            self._add_file(name, real, found)
        elif stat.S_ISDIR(found.st_mode) and inside and self._is_small(real):
            return self._add_folder(name, real)
        elif stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
            self._add_outside(name, real)
        else:
            self._plan.entries[name] = Entry("link", real)
        return []

    def _add_outside(self, name: str, path: str) -> None:
        self._plan.entries[name] = Entry("link", path)
        self._plan.linked.append(Path(path))

    def _is_small(self, folder: str) -> bool:
        if _is_within(self._root, folder):  # a link to a folder above: the copy would hold itself
            return False
        size = entries = 0
        for here, _folders, files in os.walk(folder):
            entries += len(files) + 1
            size += sum(_size_of(os.path.join(here, file)) for file in files)
            if size > LINKED_FOLDER_BYTES or entries > LINKED_FOLDER_ENTRIES:
                return False
        return True

    def _lend_git_objects(self) -> None:
        """Let the copy of a repository read the objects of the original and write its own into the copy."""
        objects = os.path.join(self._root, GIT_OBJECTS)
        if ".git" in self._plan.entries and Path(objects).is_dir():
            for name in ("", "/info", "/pack"):
                self._plan.entries[GIT_OBJECTS + name] = Entry("folder", objects + name)
            self._plan.entries[f"{GIT_OBJECTS}/info/alternates"] = Entry("text", f"{objects}\n")


def _size_of(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _check_room(plan: CopyPlan, target: Path) -> None:
    """Refuse what would take too long or fill the disk; copies that share their blocks cost neither."""
    if not plan.num_bytes or (plan.is_large and shares_blocks(plan.largest[1], target)):
        return
    if plan.num_bytes > MAX_COPIED_BYTES:
        raise _too_much(plan.source, plan.size_text)
    free = shutil.disk_usage(target).free
    if plan.num_bytes * FREE_SHARE > free:
        raise _too_much(plan.source, f"{plan.size_text}, and {target} has {free / 1e9:.1f} GB free")


def _too_much(source: Path, how_much: str) -> UsageError:
    return UsageError(
        f"The folder {source} holds too much to copy ({how_much}); run prove from a smaller folder, keep data outside "
        "it behind a link, set TMPDIR to a larger disk, or let the runs share the folder itself with --cwd-mode same."
    )


def _is_within(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")
