"""Copies of the user's files: as cheap as the file system allows, and planned before anything is copied.

A plan has for every name of the working folder, and of what lies around it, what stands for it in the copy that trials
run in. Nothing in the copy is a hard link, and a link leads to the user's files only where it has to: folders of tools,
and large data that lies outside the folder. The copy lies below a folder that stands for the root of the file system:
the name of everything in it is that folder and the name of the original. A script finds ``../data``, packages of the
parent folder and its home there; what it makes in them it makes in the copy.

It stays light, with the standard library only: the guard of a run removes folders with it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from diagnose.errors import UsageError

OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a name that has become a FIFO must not block
NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

LEFT_OUT = frozenset({".mypy_cache", ".ruff_cache", ".pytest_cache", ".tox", ".nox", ".hypothesis"})
ENVIRONMENTS = frozenset({".venv", "venv", "node_modules"})
GIT_OBJECTS = ".git/objects"

Kind = Literal["folder", "file", "link", "fifo", "text", "copy"]


def copy_file(source: str, target: Path) -> None:
    """Make ``target`` a file of its own with the content, mode and times of ``source``; it must not exist.

    Raises:
        OSError: the source is not a regular file any more, cannot be read, or the disk is full.
    """
    with _opened(source) as reading:
        writing = os.open(target, NEW_FLAGS, 0o600)
        try:
            if not clone_data(reading, writing):
                _copy_data(reading, writing)
        finally:
            os.close(writing)
    shutil.copystat(source, target)


def clone_data(reading: int, writing: int) -> bool:
    """Let the second file share the blocks of the first (reflink); False where the file system cannot."""
    try:
        import fcntl

        fcntl.ioctl(writing, 0x40049409, reading)  # FICLONE of linux/fs.h
    except (ImportError, OSError):
        return False
    return True


def shares_blocks(source: str, folder: Path) -> bool:
    """Return whether copies of ``source`` in ``folder`` take no space until they are written."""
    probe = folder / ".reflink-probe"
    try:
        with _opened(source) as reading:
            writing = os.open(probe, NEW_FLAGS, 0o600)
            try:
                return clone_data(reading, writing)
            finally:
                os.close(writing)
                probe.unlink()
    except OSError:
        return False


def remove_tree(path: Path) -> None:
    """Remove a folder or a file, never following a link; also folders without permission to change them."""
    with contextlib.suppress(OSError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        waiting = [path]  # give the owner every permission; what belongs to others stays as it is
        while waiting:
            here = waiting.pop()
            with contextlib.suppress(OSError):
                if here.lstat().st_mode & stat.S_IRWXU != stat.S_IRWXU:
                    here.chmod(0o700)
                with os.scandir(here) as entries:
                    waiting += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _opened(source: str) -> Iterator[int]:
    descriptor = os.open(source, OPEN_FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{source} is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def _copy_data(reading: int, writing: int) -> None:
    """Copy within the kernel where it can, else through memory; holes of a sparse file stay holes."""
    size = os.fstat(reading).st_size
    offset = 0
    while offset < size:
        begin, end = _next_data(reading, offset, size)
        while begin < end:
            copied = _copy_chunk(reading, writing, begin, min(end - begin, 8 << 20))
            if not copied:
                break  # the file has become shorter meanwhile
            begin += copied
        offset = end
    os.ftruncate(writing, size)


def _next_data(descriptor: int, offset: int, size: int) -> tuple[int, int]:
    """Return where the next bytes that are no hole begin and end."""
    if not hasattr(os, "SEEK_DATA"):
        return offset, size
    try:
        begin = os.lseek(descriptor, offset, os.SEEK_DATA)
        return begin, min(os.lseek(descriptor, begin, os.SEEK_HOLE), size)
    except OSError as error:
        return (size, size) if error.errno == errno.ENXIO else (offset, size)  # a hole up to the end, or no support


def _copy_chunk(reading: int, writing: int, offset: int, count: int) -> int:
    if hasattr(os, "copy_file_range"):
        with contextlib.suppress(OSError):  # two file systems, or one that cannot
            copied = os.copy_file_range(reading, writing, count, offset, offset)
            if copied:
                return copied
    data = os.pread(reading, count, offset)
    done = 0
    while done < len(data):
        done += os.pwrite(writing, data[done:], offset + done)
    return len(data)


def children_of(folder: str, unreadable: list[str] | None = None) -> list[os.DirEntry[str]]:
    """Return what a folder holds by name, nothing where it cannot be read: then it is added to ``unreadable``."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda child: child.name)
    except OSError:
        if unreadable is not None:
            unreadable.append(folder)
        return []


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """How much is copied, in bytes and in names of files and folders."""

    num_bytes: int = 32 << 30  # more takes minutes to copy, and a budget is ten
    entries: int = 200_000
    free_share: int = 2  # the disk must have this many times the size of the copy free: the runs write there too
    announced_bytes: int = 256_000_000  # what is smaller is copied at once
    announced_files: int = 5_000
    linked_file_bytes: int = 16 << 20  # a smaller file outside the folder that a link of the user's leads to is copied
    linked_folder_bytes: int = 64 << 20  # a smaller folder too
    linked_folder_entries: int = 1_000
    around: int = 5_000  # names in one folder above: a home with more is no project's


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
    limits: CopyLimits = field(default_factory=CopyLimits)
    entries: dict[str, Entry] = field(default_factory=dict)  # by path within the copy; a folder before what it holds
    num_bytes: int = 0
    num_files: int = 0
    linked: list[Path] = field(default_factory=list)  # the user's own files and folders that links of the copy lead to
    unreadable: list[str] = field(default_factory=list)
    largest: tuple[int, str] = (0, "")

    def kind_of(self, original: Path) -> Kind | None:
        """Return what stands for a file in a copy whose root stands for the root of the file system."""
        entry = self.entries.get(_name(original))
        return entry.kind if entry is not None else None

    @property
    def is_large(self) -> bool:
        """Return whether copying takes long enough to be announced."""
        return self.num_bytes > self.limits.announced_bytes or self.num_files > self.limits.announced_files

    @property
    def size_text(self) -> str:
        """Return the size of the copy as one reads it."""
        size = self.num_bytes
        text = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size:,} bytes"
        return f"{text} in {self.num_files:,} file{'' if self.num_files == 1 else 's'}"


def is_environment(path: Path) -> bool:
    """Return whether the folder holds installed packages: a virtual environment of Python or node."""
    marks = ("pyvenv.cfg", "conda-meta")
    return path.name in ENVIRONMENTS or any((path / mark).exists() for mark in marks)


def plan_copy(
    source: Path, *, without: Sequence[Path] = (), target: Path | None = None, limits: CopyLimits | None = None
) -> CopyPlan:
    """Look through the folder and decide for every name what stands for it in the copy; nothing is copied yet.

    Args:
        source: The working folder.
        without: Folders that are left out, such as the one that the copy goes to.
        target: Where the copy will lie, to see whether there is room; the temporary folder unless given.
        limits: How much is copied at most.

    Raises:
        UsageError: the folder holds too much to be copied.
    """
    plan = CopyPlan(source, limits or CopyLimits())
    _Planner(plan, without).run()
    where = target or Path(tempfile.gettempdir())
    if not plan.num_bytes or (plan.is_large and shares_blocks(plan.largest[1], where)):
        return plan  # copies that share their blocks cost neither time nor space
    if plan.num_bytes > plan.limits.num_bytes:
        raise _too_much(plan.source, plan.size_text)
    free = shutil.disk_usage(where).free
    if plan.num_bytes * plan.limits.free_share > free:
        raise _too_much(plan.source, f"{plan.size_text}, and {where} has {free / 1e9:.1f} GB free")
    return plan


class _Planner:
    def __init__(self, plan: CopyPlan, without: Sequence[Path]) -> None:
        self._plan, self._limits = plan, plan.limits
        self._root = os.path.realpath(plan.source)
        self._without = {os.path.realpath(path) for path in without}

    def run(self) -> None:
        waiting = [("", self._root)]
        while waiting:
            name, folder = waiting.pop()
            for child in children_of(folder, self._plan.unreadable):
                inner = os.path.join(name, child.name)
                waiting += self._add(inner, child, inside=_is_within(folder, self._root))
            if len(self._plan.entries) > self._limits.entries:
                raise _too_much(self._plan.source, f"over {self._limits.entries:,} names")
        self._lend_git_objects()

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
            self._plan.entries[name] = Entry("link", path)
            self._plan.linked.append(Path(path))
            return []
        self._plan.entries[name] = Entry("folder", path)
        return [(name, path)]

    def _add_file(self, name: str, path: str, found: os.stat_result) -> None:
        if not os.access(path, os.R_OK):
            self._plan.unreadable.append(path)
            return
        is_large = found.st_size > self._limits.linked_file_bytes  # it may have holes
        size = min(found.st_size, found.st_blocks * 512) if is_large else found.st_size
        self._plan.entries[name] = Entry("file", path)
        self._plan.num_files += 1
        self._plan.num_bytes += size
        self._plan.largest = max(self._plan.largest, (size, path))

    def _add_link(self, name: str, path: str, *, inside: bool) -> list[tuple[str, str]]:
        """Plan a link: within the folder it stays one; what it leads to outside is copied where it is small."""
        real = os.path.realpath(path)
        if inside and _is_within(real, self._root):
            text = os.path.relpath(os.path.relpath(real, self._root), os.path.dirname(name) or ".")
            self._plan.entries[name] = Entry("link", text)
            return []
        try:
            found = Path(real).stat()
            is_file, is_folder = stat.S_ISREG(found.st_mode), stat.S_ISDIR(found.st_mode)
            if is_file and found.st_size <= self._limits.linked_file_bytes:
                self._add_file(name, real, found)
                return []
            if is_folder and inside and self._is_small(real):
                return self._add_folder(name, real)
            holds_data = is_file or is_folder
        except OSError:  # a dangling link: a script could make the file
            holds_data = True
        self._plan.entries[name] = Entry("link", real)
        self._plan.linked += [Path(real)] if holds_data else []
        return []

    def _is_small(self, folder: str) -> bool:
        if _is_within(self._root, folder):  # a link to a folder above: the copy would hold itself
            return False
        size = entries = 0
        for here, _folders, files in os.walk(folder):
            entries += len(files) + 1
            for file in files:
                with contextlib.suppress(OSError):
                    size += os.lstat(os.path.join(here, file)).st_size
            if size > self._limits.linked_folder_bytes or entries > self._limits.linked_folder_entries:
                return False
        return True

    def _lend_git_objects(self) -> None:
        """Let the copy of a repository read the objects of the original and write its own into the copy."""
        objects = os.path.join(self._root, GIT_OBJECTS)
        if ".git" in self._plan.entries and Path(objects).is_dir():
            for name in ("", "/info", "/pack"):
                self._plan.entries[GIT_OBJECTS + name] = Entry("folder", objects + name)
            self._plan.entries[f"{GIT_OBJECTS}/info/alternates"] = Entry("text", f"{objects}\n")


def _too_much(source: Path, how_much: str) -> UsageError:
    return UsageError(
        f"The folder {source} holds too much to copy ({how_much}); run prove from a smaller folder, keep data "
        "outside it and link to them, set TMPDIR to a larger disk, or let the runs share the folder itself with "
        "--cwd-mode same."
    )


def _is_within(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def below(root: Path, original: Path) -> Path:
    """Return where a path stands below the folder that stands for the root."""
    return root.joinpath(*original.parts[1:])


def in_copy(word: str, original: Path, copy: Path) -> str:
    """Return a word of a command with a path of the working folder turned into that of its copy."""
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    path = Path(os.path.normpath(value))  # a relative one is inside of nothing that is absolute
    return f"{option}{equals}{copy / path.relative_to(original)}" if path.is_relative_to(original) else word


def plan_surroundings(
    cwd: Path, home: Path | None = None, *, own: Sequence[Path] = (), without: Sequence[Path] = ()
) -> CopyPlan:
    """Return a link for every name in the home, and next to the working folder and each folder above it.

    Args:
        cwd: The working folder, which another plan copies.
        home: The user's home.
        own: Caches, there or not, that are folders of the run's. What the working folder holds is left to its plan.
        without: Folders that are left out.

    Returns:
        The plan. A folder of too many names is listed in its ``unreadable`` and has none of them.
    """
    here = Path(os.path.realpath(cwd))
    outside = [path for path in own if not path.is_relative_to(here)]
    homes = [*_above(home), home] if home is not None and not home.is_relative_to(here) else []
    seen = dict.fromkeys((*_above(here), *homes))
    listed = dict.fromkeys((*seen, *(folder for path in outside for folder in _above(path))))
    hidden = {os.path.realpath(path) for path in without}
    plan = CopyPlan(here)
    for folder in listed:
        plan.entries[_name(folder)] = Entry("folder", str(folder))
    for path in (here, *outside):
        plan.entries.setdefault(_name(path), Entry("copy", str(path)))
    unreadable: list[str] = []
    for folder in listed:
        children = [child for child in children_of(str(folder), unreadable) if child.path not in hidden]
        if len(children) > plan.limits.around:
            unreadable.append(str(folder))
            continue
        for child in children:
            plan.entries.setdefault(_name(Path(child.path)), Entry("link", child.path))
    plan.unreadable = [folder for folder in unreadable if Path(folder) in seen]
    return plan


def _above(path: Path) -> list[Path]:
    """Return the folders above a path, the root apart, from the top down."""
    return [*reversed(path.parents[:-1])]


def _name(folder: Path) -> str:
    return str(folder.relative_to(folder.anchor))
