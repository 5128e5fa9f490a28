"""Where runs work: copies of the working folder with a home and caches, each put back before each of its runs.

Runs that follow one another share one copy; runs that are alive at once have one each. A copy is real, made once: what
a run writes, appends to, renames or removes there is its own. It lies below ``root``, a folder that stands for the root
of the file system. A cache that is data (downloaded weights) is shown with links, and small files, which tools lock and
rewrite, are copies. A cache that can be built again (compiled kernels) is shown as a whole or starts empty; all copies
share those that variables name. Caches are removed at the end.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import stat
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from diagnose.capture.record.folder import rewrite_texts
from diagnose.errors import UsageError
from diagnose.text.plain_text import clean
from diagnose.trials.copying import (
    CopyPlan,
    Entry,
    below,
    children_of,
    copy_file,
    plan_surroundings,
    remove_tree,
)
from diagnose.trials.guard import SHARED_MEMORY
from diagnose.trials.limits import Limits, Originals, back_up, check_number

ROOT, TEMPORARY = "cwd", "tmp"  # below the run's own folder
FOLDERS = ("folder", "copy")
# Bytecode of modules is not written next to the user's sources, and asking git for its state is only reading
PROTECTED = {"PYTHONDONTWRITEBYTECODE": "1", "GIT_OPTIONAL_LOCKS": "0"}
CACHE = ".cache"
IN_HOME = (CACHE, ".triton", ".nv", ".cupy")  # folders of the home that a run has to itself
DATA = (
    "HF_DATASETS_CACHE", "HF_HOME", "HF_HUB_CACHE", "HF_MODULES_CACHE", "HUGGINGFACE_HUB_CACHE", "MPLCONFIGDIR",
    "TORCH_HOME", "TRANSFORMERS_CACHE", "XDG_CACHE_HOME",
)  # fmt: skip
"""Variables that name caches of downloads."""

BUILT = (
    "CUDA_CACHE_PATH", "CUPY_CACHE_DIR", "NUMBA_CACHE_DIR", "PYTORCH_KERNEL_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR",
)  # fmt: skip
"""Those of compilers."""

FILLED = frozenset({"diagnose", "huggingface", "matplotlib", "torch", "torch_extensions", "triton"})  # of ~/.cache

Kind = Literal["folder", "file", "link"]


@dataclass
class Workplace:
    """The folders of all runs, and the user's files as they were before the first.

    Args:
        plan: What the copy of the working folder consists of.
        private: The folder that all of it lies in.
        results: The folder of what the runs measured.
        script: The folder of the script.
        limits: What a run may write to.
        report: Takes sentences for the user.

    Raises:
        UsageError: there is too much to be backed up, if nothing keeps a run from changing it.
    """

    plan: CopyPlan
    private: Path
    results: Path
    script: Path
    limits: Limits
    report: Callable[[str], None]

    def __post_init__(self) -> None:
        own, plan = (self.private, self.results), self.plan
        self.root = self.private / ROOT
        if plan.is_large:
            self.report(f"copying the working folder, {plan.size_text}, to {self.private}")
        if plan.unreadable:
            num, first = len(plan.unreadable), clean(plan.unreadable[0])
            self.report(f"{first}{f' and {num - 1} more' if num > 1 else ''} cannot be read and is not in the copy")
        home = _home()
        self._caches = user_caches(home)
        around = plan_surroundings(plan.source, home, own=[cache.path for cache in self._caches], without=own)
        for folder in around.unreadable:
            self.report(f"{clean(folder)} cannot be listed or holds too many names, so runs do not see what lies in it")
        self._home = home if str(home) not in around.unreadable else None
        self._around = around
        self._places: dict[int, Place] = {}
        self._backup: Path | None = None
        self._originals = self._watched()

    def restore(self, number: int = 0) -> Place:
        """Put everything back in one of the copies but what caches hold; return it.

        Raises:
            UsageError: it cannot be written.
        """
        place = self._places.setdefault(number, self._new_place(number))
        place.surroundings.restore()
        place.copy.restore()
        for cache in () if place.is_seeded else self._caches:
            if self._around.kind_of(cache.path) == "copy":
                seed(cache, below(place.root, cache.path))
        place.is_seeded = True
        remove_tree(place.temporary)
        place.temporary.mkdir()
        return place

    def _new_place(self, number: int) -> Place:
        root = self.root if not number else self.private / f"{ROOT}-{number}"
        copy = WorkingCopy(self.plan, below(root, self._around.source))
        temporary = self.private / (f"{TEMPORARY}-{number}" if number else TEMPORARY)
        return Place(root, temporary, WorkingCopy(self._around, root), copy)

    def settings(self, place: Place) -> dict[str, str]:
        """Return what a run must find in its environment: its home, its caches, and where temporary files go."""
        found = {**PROTECTED, "PWD": str(place.copy.path)}
        for cache in self._caches:
            root = place.root if cache.data else self.root
            found |= {name: str(below(root, path)) for name, path in cache.variables.items()}
        if self._home is not None:
            found["HOME"] = str(below(place.root, self._home))
        # macOS allows 104 bytes for a socket, of which Python's multiprocessing needs 33.
        has_room = len(os.fsencode(place.temporary)) <= 70
        if not has_room and self.limits.is_isolated:
            found["TMPDIR"] = SHARED_MEMORY  # the run's own
        elif has_room or self.limits.writable is not None:
            found["TMPDIR"] = str(place.temporary)
        return found

    def name_originals(self, folder: Path, place: Place) -> None:
        """Take the names of copies out of what a run has written."""
        for root in dict.fromkeys((place.root, self.root)):  # one that compiles names the shared cache
            name_originals(folder, root)

    def verify(self) -> str:
        """Return a sentence about those of the user's files that have changed, "" if none has."""
        changes = self._originals.look()
        if changes.new:
            more = f" and {len(changes.new) - 1} more" if len(changes.new) > 1 else ""
            self.report(f"{clean(changes.new[0])}{more} appeared while the trials ran; nothing of it was removed")
        if not changes.found:
            return ""
        saved, backup = "", self._backup
        num = sum(below(backup, Path(path)).exists() for path in changes.found) if backup is not None else 0
        if num:
            which = "What was there before" if num == len(changes.found) else f"What {num} of them held before"
            saved = f" {which} is in {backup}."
        self._backup = None  # it stays
        return (
            f"{clean(changes.text)} while the trials ran, so no further one was started.{saved} If the script writes "
            "there, let it write below its working folder, or allow it with --cwd-mode same; if not, prove again."
        )

    def remove(self) -> str:
        """Remove the copies, and the backup unless files have changed since the last look: return a sentence then."""
        changed = self.verify() if self._backup is not None else ""
        if self._backup is not None:
            remove_tree(self._backup)
            self._backup = None
        for root in {self.root, *(place.root for place in self._places.values())}:
            remove_tree(root)
        return changed

    def _watched(self) -> Originals:
        plan, backup = self.plan, self.limits.backup
        here = plan.source.resolve()
        outside = [*plan.linked, *([] if self.script.is_relative_to(here) else [self.script])]
        # The repository that the working folder is a part of: a run that nothing restricts could change it.
        project = next(([folder] for folder in here.parents if backup and (folder / ".git").exists()), [])
        named = filter(None, (*self.limits.allowed, backup))
        without = (self.private, self.results, *map(Path, named), plan.source)
        originals = Originals([plan.source], [*outside, *project], without)
        if originals.unverified:
            names = ", ".join(map(clean, originals.unverified))
            self.report(f"{names} holds too many files to see whether the script writes there")
        if backup:
            check_number(path for path in originals.unverified if Path(path) not in project)
            self._backup = back_up(originals.sizes)
            self.report(f"backed up {len(originals.sizes):,} files that the runs could change to {self._backup}")
        return originals


def _home() -> Path | None:
    try:
        home = Path.home().resolve()
    except (OSError, RuntimeError):
        return None
    return home if home.is_dir() and home.parent != home else None


@dataclass
class Place:
    """One copy, and what belongs to it, for one run at a time."""

    root: Path  # stands for the root of the file system
    temporary: Path
    surroundings: WorkingCopy
    copy: WorkingCopy  # of the working folder
    is_seeded: bool = False  # caches have been filled


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

    def edit(self, path: str, text: str) -> bool:
        """Give a file of the copy another text until it is restored; False if the copy has none of its own.

        Args:
            path: Of the original.
            text: What everything that runs there is to read.
        """
        name = os.path.relpath(os.path.realpath(path), os.path.realpath(self._plan.source))
        entry = self._plan.entries.get(name)
        if entry is None or entry.kind != "file":
            return False
        target = self.path / name
        target.unlink()
        target.write_bytes(text.encode())
        shutil.copymode(entry.source, target)
        return True

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
            for child in children_of(str(here)):
                name = os.path.join(folder, child.name)  # this is done for every file before every run
                entry = self._plan.entries.get(name)
                is_folder = child.is_dir(follow_symlinks=False)
                is_planned = entry is not None and (entry.kind in FOLDERS) is is_folder
                if is_planned and (is_folder or _stamp(child.stat(follow_symlinks=False)) == self._stamps.get(name)):
                    present.add(name)
                    waiting += [name] if entry is not None and entry.kind == "folder" else []
                else:
                    remove_tree(Path(child.path))
        return present


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_size, found.st_mode, found.st_mtime_ns, found.st_ctime_ns


@dataclass(frozen=True)
class Cache:
    """A cache of the user: its folder, there or not, and the variables of the environment that name it or a part."""

    path: Path
    data: bool
    filled: frozenset[str] | None = None  # the only inner folders that a run adds to, None: all
    variables: Mapping[str, Path] = field(default_factory=dict)


def user_caches(home: Path | None) -> list[Cache]:
    """Return the caches in the user's home and those that the environment names; none lies in another one."""
    variables = _named()
    found = {} if home is None else {home / name: name == CACHE for name in IN_HOME}
    for name, path in variables.items():
        found[path] = found.get(path, False) or name in DATA
    whole = {variables.get("XDG_CACHE_HOME"), home and home / CACHE}
    caches = []
    for path, is_data in found.items():
        if any(path != other and path.is_relative_to(other) for other in found):
            continue
        mine = {name: inner for name, inner in variables.items() if inner.is_relative_to(path)}
        named = {inner.relative_to(path).parts[0] for inner in mine.values() if inner != path}
        caches.append(Cache(path, is_data, FILLED | named if path in whole else None, mine))
    return caches


def _named() -> dict[str, Path]:
    named = {name: os.environ[name] for name in (*DATA, *BUILT) if os.environ.get(name)}
    if os.environ.get("TRITON_HOME"):
        named.setdefault("TRITON_CACHE_DIR", str(Path(os.environ["TRITON_HOME"], ".triton", "cache")))
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())  # as torch calls the folder
        named.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir(), f"torchinductor_{user}")))
    paths = {name: Path(path).expanduser().resolve() for name, path in named.items()}
    return {name: path for name, path in paths.items() if path.parent != path}


def seed(cache: Cache, target: Path, *, most: int = 5_000) -> None:
    """Show in the folder ``target``, made if missing, what the cache holds; nothing written there reaches the user's.

    Of a cache of data, inner folders beyond ``most`` names are links, which a run can read only; one that can be built
    again then starts empty. So many names take below a second, some seconds on a network file system.
    """
    target.mkdir(parents=True, exist_ok=True)
    entries, is_whole = _planned(str(cache.path), cache.filled, most)
    for name, (kind, path) in entries.items() if cache.data or is_whole else ():
        with contextlib.suppress(OSError):  # gone meanwhile, or unreadable: a cache can lack it
            match kind:
                case "folder":
                    (target / name).mkdir()
                case "file":
                    copy_file(path, target / name)
                case "link":
                    (target / name).symlink_to(path)


def _planned(top: str, filled: frozenset[str] | None, left: int) -> tuple[dict[str, tuple[Kind, str]], bool]:
    """Return what stands for each name below ``top``, a folder before what it holds, and whether all had room."""
    entries: dict[str, tuple[Kind, str]] = {}
    waiting, is_whole = deque([""]), True
    while waiting:
        folder = waiting.popleft()
        children = children_of(f"{top}/{folder}")
        if len(children) > left:
            is_whole = False
            entries |= {folder: ("link", f"{top}/{folder}")} if folder else {}
            continue
        left -= len(children)
        for child in children:
            name = f"{folder}/{child.name}" if folder else child.name
            is_linked = filled is not None and not folder and child.name not in filled
            entries[name] = ("link", child.path) if is_linked else _stands_for(child, top)
            waiting += [name] if entries[name][0] == "folder" else []
    return entries, is_whole


def _stands_for(child: os.DirEntry[str], top: str) -> tuple[Kind, str]:
    if child.is_dir(follow_symlinks=False):
        return "folder", child.path
    if child.is_symlink():
        text, real = Path(child.path).readlink(), Path(os.path.realpath(child.path))
        return "link", str(text if not text.is_absolute() and real.is_relative_to(top) else real)
    with contextlib.suppress(OSError):
        if child.is_file() and child.stat().st_size <= 64 << 10:  # a lock, an index or a table of contents
            return "file", child.path
    return "link", child.path


def name_originals(folder: Path, root: Path) -> None:
    """Take the name of ``root`` out of every text in the folder, and out of every packed trace."""
    rewrite_texts(folder, lambda data: data.replace(bytes(root), b""))
