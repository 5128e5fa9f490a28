"""Notices when the user's own files change while trials run: sizes, times, modes, owners, contents of small files.

What is looked at: the working folder, the script's folder, and what links of the working folder lead to, each up to a
number of entries. What is not: environments with installed packages, repositories of git, folders of editors and tools,
and everything else on the machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.trials.copy_plan import LEFT_OUT, MAX_ENTRIES, is_environment
from diagnose.trials.copying import children_of

__all__ = ["Changes", "Originals"]

MAX_LINKED_ENTRIES = 20_000  # of each folder outside that a link leads to: some 0.1 s after every run
MAX_HASHED_BYTES, MAX_HASHED_TOTAL = 1 << 20, 64 << 20
UNWATCHED = LEFT_OUT | {".git", ".hg", ".svn", ".idea", ".vscode", ".ipynb_checkpoints", "__pycache__"}
SHOWN = 3  # names in a sentence
TIME = "modification time"
WRITING = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True, slots=True)
class _File:
    size: int
    inode: tuple[int, int]
    ctime_ns: int  # of the last change of any kind: no program can set it
    attributes: Mapping[str, object]
    digest: bytes = b""  # of a small file


@dataclass(frozen=True, slots=True)
class Changes:
    """What became of the files: by path what is different, and those that are new since the last look."""

    found: Mapping[str, str]
    new: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return what is different as a part of a sentence, "" where nothing is."""
        more = f", and {len(self.found) - SHOWN} more" if len(self.found) > SHOWN else ""
        return "; ".join(f"{path} {what}" for path, what in list(self.found.items())[:SHOWN]) + more


@dataclass
class Originals:
    """The user's files as they were at the start.

    ``folders`` are looked through as a whole, ``linked`` up to `MAX_LINKED_ENTRIES` each; ``without`` is left out.
    """

    folders: Sequence[Path]
    linked: Sequence[Path] = ()
    without: Sequence[Path] = ()
    unverified: list[str] = field(default_factory=list)  # folders that hold more than is looked at
    _before: dict[str, _File] = field(default_factory=dict)
    _missing: set[str] = field(default_factory=set)
    _known: set[str] = field(default_factory=set)
    _hashed: int = 0

    def __post_init__(self) -> None:
        self.linked = [path for path in self.linked if not is_environment(path)]  # installed packages: too many files
        self._missing = {str(path) for path in self.linked if not path.exists()}
        for path, found in self._files():
            self._before[path] = self._described(path, found)
        self._known = set(self._before)

    def look(self) -> Changes:
        """Compare the files with what they were; a file that another process still writes, as a log, is left out."""
        now = dict(self._files())
        different = {path: self._difference(path, now[path]) for path in self._before if path in now}
        found = {path: what for path, what in different.items() if what}
        found |= {path: "is gone" for path in self._before if path not in now and not os.path.lexists(path)}
        found |= {path: "was made, where a link had led nowhere" for path in self._missing if Path(path).exists()}
        new = tuple(path for path in now if path not in self._known and not stat.S_ISDIR(now[path].st_mode))
        self._known |= set(new)
        return Changes(self._without_open_files(found), new)

    def _without_open_files(self, found: dict[str, str]) -> dict[str, str]:
        if not found:
            return {}
        open_files = _written_by_others()
        ignored = {path for path in found if path in self._before and self._before[path].inode in open_files}
        for path in ignored:
            del self._before[path]
        return {path: what for path, what in found.items() if path not in ignored}

    @property
    def sizes(self) -> Mapping[str, int]:
        """Return the size in bytes of every file that is looked at."""
        return {path: known.size for path, known in self._before.items() if TIME in known.attributes}

    def _difference(self, path: str, found: os.stat_result) -> str:
        """Return what is different, "" if nothing is: the same content written again is, by its time."""
        known, is_folder = self._before[path], stat.S_ISDIR(found.st_mode)
        if found.st_ctime_ns == known.ctime_ns and _inode(found) == known.inode:
            return ""
        attributes = _attributes(path, found)
        names = [name for name, value in attributes.items() if value != known.attributes.get(name)]
        digest = _digest(path) if known.digest else b""
        is_same = is_folder or (known.size == found.st_size and digest in (known.digest, b""))
        if is_same and names and (is_folder or known.digest or TIME not in names):
            return f"got another {' and '.join(names)}"
        return "" if is_same and (is_folder or known.digest) else "was changed"

    def _described(self, path: str, found: os.stat_result) -> _File:
        digest = b""
        is_small = found.st_size <= MAX_HASHED_BYTES and self._hashed + found.st_size <= MAX_HASHED_TOTAL
        if stat.S_ISREG(found.st_mode) and is_small:
            self._hashed += found.st_size
            digest = _digest(path)
        return _File(found.st_size, _inode(found), found.st_ctime_ns, _attributes(path, found), digest)

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        for folder in self.folders:
            yield from self._below(folder, MAX_ENTRIES, environments=False)
        for path in self.linked:
            yield from self._below(path, MAX_LINKED_ENTRIES, environments=True)

    def _below(self, top: Path, limit: int, *, environments: bool) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the folders and regular files of a folder, or the one file that ``top`` is; links are not followed."""
        without = {os.path.realpath(path) for path in self.without}
        waiting = [os.path.realpath(top)]
        if not top.is_dir():
            with contextlib.suppress(OSError):
                yield waiting[0], os.lstat(waiting[0])
            return
        while waiting:
            for child in children_of(waiting.pop()):
                limit -= 1
                if limit < 0:
                    self._leave_out(top)
                    return
                found = _stat_of(child) if child.path not in without else None
                if found is None or stat.S_ISREG(found.st_mode):
                    yield from [(child.path, found)] if found else []
                elif stat.S_ISDIR(found.st_mode) and child.name not in UNWATCHED:
                    yield child.path, found
                    waiting += [child.path] if environments or not is_environment(Path(child.path)) else []

    def _leave_out(self, top: Path) -> None:
        if str(top) not in self.unverified:
            self.unverified.append(str(top))


def _stat_of(child: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return child.stat(follow_symlinks=False)
    except OSError:  # gone meanwhile
        return None


def _inode(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _attributes(path: str, found: os.stat_result) -> dict[str, object]:
    """Return what can be set besides the content; the time of a folder's last change follows from what it holds."""
    attributes: dict[str, object] = {
        "mode": stat.S_IMODE(found.st_mode),
        "owner": (found.st_uid, found.st_gid),
        "extended attributes": _extended(path),
    }
    return attributes if stat.S_ISDIR(found.st_mode) else {**attributes, TIME: found.st_mtime_ns}


def _extended(path: str) -> dict[str, bytes]:
    if sys.platform != "linux":
        return {}
    try:
        return {
            name: os.getxattr(path, name, follow_symlinks=False) for name in os.listxattr(path, follow_symlinks=False)
        }
    except OSError:  # a file system without them
        return {}


def _digest(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        return hashlib.blake2b(file.read(MAX_HASHED_BYTES + 1), digest_size=16).digest()


def _written_by_others() -> set[tuple[int, int]]:
    """Return the files that living processes hold open for writing: no trial lives when this is asked for."""
    found: set[tuple[int, int]] = set()
    with contextlib.suppress(OSError):  # no /proc: not Linux
        for process in os.listdir("/proc"):
            if process.isdecimal():
                found |= _written_by(process)
    return found


def _written_by(process: str) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    with contextlib.suppress(OSError):  # another user's, or gone
        for descriptor in os.listdir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = Path(f"/proc/{process}/fdinfo/{descriptor}").read_text(encoding="ascii")
                flags = int(text.partition("flags:")[2].split()[0], 8)
                status = Path(f"/proc/{process}/fd/{descriptor}").stat()
                if flags & WRITING and stat.S_ISREG(status.st_mode):
                    found.add(_inode(status))
    return found
