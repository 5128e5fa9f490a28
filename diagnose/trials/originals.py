"""Notices when the user's own files change while trials run: sizes, times, modes, owners, contents of small files.

What is looked at: the working folder, the script's folder, and what links of the working folder lead to, each up to a
number of entries. What is not: environments with installed packages, repositories of git, folders of editors and tools,
and everything else on the machine. If nothing keeps a run from changing these files, they are backed up first.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.model.files import printable
from diagnose.trials.copying import (
    LEFT_OUT,
    CopyLimits,
    below,
    children_of,
    copy_file,
    is_environment,
    remove_tree,
    shares_blocks,
)

UNWATCHED = LEFT_OUT | {".git", ".hg", ".svn", ".idea", ".vscode", ".ipynb_checkpoints", "__pycache__"}
TIME = "modification time"
WRITING = os.O_WRONLY | os.O_RDWR
MAX_BACKUP_BYTES = 4 << 30  # of all files: more takes minutes to copy
INSTEAD = (
    "Nothing on this system keeps a run from changing files outside its copy, so they are backed up first. Run prove "
    "in a smaller folder, or let the runs share the folder itself with --cwd-mode same, which protects no file."
)


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
        more = f", and {len(self.found) - 3} more" if len(self.found) > 3 else ""
        return "; ".join(f"{path} {what}" for path, what in list(self.found.items())[:3]) + more


@dataclass
class Originals:
    """The user's files as they were at the start.

    ``folders`` are looked through as a whole, ``linked`` up to a number of entries each; ``without`` is left out.
    """

    folders: Sequence[Path]
    linked: Sequence[Path] = ()
    without: Sequence[Path] = ()
    unverified: list[str] = field(default_factory=list)  # folders that hold more than is looked at
    max_linked_entries: int = 20_000  # of each folder outside that a link leads to: some 0.1 s after every run
    max_hashed_bytes: int = 1 << 20  # of a file; 64 of that size of all
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
        found = {path: what for path in self._before if path in now and (what := self._difference(path, now[path]))}
        found |= {path: "is gone" for path in self._before if path not in now and not os.path.lexists(path)}
        found |= {path: "was made, where a link had led nowhere" for path in self._missing if Path(path).exists()}
        new = tuple(path for path in now if path not in self._known and not stat.S_ISDIR(now[path].st_mode))
        self._known |= set(new)
        open_files = _written_by_others() if found else set()
        for path in [path for path in found if path in self._before and self._before[path].inode in open_files]:
            del self._before[path], found[path]
        return Changes(found, new)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Return the size in bytes of every file that is looked at."""
        return {path: known.size for path, known in self._before.items() if TIME in known.attributes}

    def _difference(self, path: str, found: os.stat_result) -> str:
        """Return what is different, "" if nothing is: the same content written again is, by its time."""
        known = self._before[path]
        if found.st_ctime_ns == known.ctime_ns and _inode(found) == known.inode:
            return ""
        if stat.S_ISDIR(found.st_mode):
            is_same = is_certain = True
        else:
            digest = self._digest(path) if known.digest else b""
            is_same, is_certain = known.size == found.st_size and digest in (known.digest, b""), bool(known.digest)
        attributes = _attributes(path, found)
        names = [name for name, value in attributes.items() if value != known.attributes.get(name)]
        if is_same and names and (is_certain or TIME not in names):
            return f"got another {' and '.join(names)}"
        return "" if is_same and is_certain else "was changed"

    def _described(self, path: str, found: os.stat_result) -> _File:
        digest, num = b"", found.st_size
        is_small = num <= self.max_hashed_bytes and self._hashed + num <= 64 * self.max_hashed_bytes
        if stat.S_ISREG(found.st_mode) and is_small:
            self._hashed += num
            digest = self._digest(path)
        return _File(num, _inode(found), found.st_ctime_ns, _attributes(path, found), digest)

    def _digest(self, path: str) -> bytes:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""
        with os.fdopen(descriptor, "rb") as file:
            return hashlib.blake2b(file.read(self.max_hashed_bytes + 1), digest_size=16).digest()

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        for folder in self.folders:
            yield from self._below(folder, CopyLimits().entries, environments=False)
        for path in self.linked:
            yield from self._below(path, self.max_linked_entries, environments=True)

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
                    self.unverified += [str(top)] if str(top) not in self.unverified else []
                    return
                with contextlib.suppress(OSError):  # gone meanwhile
                    found = child.stat(follow_symlinks=False)
                    is_folder = stat.S_ISDIR(found.st_mode) and child.name not in UNWATCHED
                    if child.path not in without and (is_folder or stat.S_ISREG(found.st_mode)):
                        yield child.path, found
                        if is_folder and (environments or not is_environment(Path(child.path))):
                            waiting.append(child.path)


def _inode(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _attributes(path: str, found: os.stat_result) -> dict[str, object]:
    """Return what can be set besides the content; the time of a folder's last change follows from what it holds."""
    extended: dict[str, bytes] = {}
    with contextlib.suppress(OSError, AttributeError):  # not Linux, or a file system without them
        names = os.listxattr(path, follow_symlinks=False)
        extended = {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
    attributes: dict[str, object] = {
        "mode": stat.S_IMODE(found.st_mode),
        "owner": (found.st_uid, found.st_gid),
        "extended attributes": extended,
    }
    return attributes if stat.S_ISDIR(found.st_mode) else {**attributes, TIME: found.st_mtime_ns}


def _written_by_others() -> set[tuple[int, int]]:
    """Return the files that living processes hold open for writing: no trial lives when this is asked for."""
    found: set[tuple[int, int]] = set()
    for process, descriptor in (path.split("/")[2::2] for path in glob.iglob("/proc/[0-9]*/fd/*")):
        with contextlib.suppress(OSError, ValueError, IndexError):  # another user's, or gone
            text = Path(f"/proc/{process}/fdinfo/{descriptor}").read_text(encoding="ascii")
            flags = int(text.partition("flags:")[2].split()[0], 8)
            status = Path(f"/proc/{process}/fd/{descriptor}").stat()
            if flags & WRITING and stat.S_ISREG(status.st_mode):
                found.add(_inode(status))
    return found


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
            if os.access(path, os.R_OK):
                target = below(folder, Path(path))
                target.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                    copy_file(path, target)
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
    if size <= MAX_BACKUP_BYTES and size * CopyLimits().free_share <= free:
        return
    if not shares_blocks(max(sizes, key=lambda path: sizes[path]), folder):
        raise UsageError(
            f"The files that the runs could change hold {size / 1e9:.1f} GB; at most {MAX_BACKUP_BYTES / 1e9:.1f} GB "
            f"are backed up, and {printable(folder.parent)} has {free / 1e9:.1f} GB free. {INSTEAD}"
        )
