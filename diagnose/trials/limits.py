"""What a run may write to and reach, and whether the user's own files stayed as they were.

One list of limits, which the guard of a run enforces and `Limits.text` puts into words. What such a limit has refused
gets a sentence with the option that allows it; experiment trackers are kept offline.

What is looked at: the working folder, the script's folder, and what links of the working folder lead to, each up to a
number of entries. What is not: environments with installed packages, repositories of git, folders of editors and tools,
and everything else on the machine. If nothing keeps a run from changing these files, they are backed up first.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.model.files import printable
from diagnose.text.plain_text import one_line
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
from diagnose.trials.guard import SHARED_MEMORY, can_restrict, why_not_isolated

COPY, RESULTS = "its own copy, home, caches and temporary files", "the folder of the results"
OFFLINE = {
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_ONLINE": "0",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # a server that a script names is not tried for minutes
    "NEPTUNE_MODE": "offline",
    "SWANLAB_MODE": "offline",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "offline",
}
SILENT = frozenset({"debug", "disabled", "dryrun", "local", "offline", "read-only"})  # modes that send nothing
REFUSED = re.compile(r"permission denied|read-only file system|errno 13\b|cross-device link", re.IGNORECASE)
PATH = re.compile(r"['\"](/[^'\"\n]*)['\"]|(?<![\w./])(/[^\s'\":,;()]+)")
UNREACHED = re.compile(
    r"unreachable|name resolution|resolve host|service not known|getaddrinfo|n.t connect|connection ?(error|refused)|"
    r"no internet|offline|urlopen|max retries",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may do besides reading.

    ``writable`` has the name of each place by its path, None if a run may write wherever the user may; ``allowed`` are
    those that the user has named. ``network`` is "open", "loopback" or, if this system cannot isolate a run, why.
    """

    writable: Mapping[str, str] | None
    network: str
    allowed: tuple[str, ...] = ()
    backup: str = ""  # the folder in which files that a run could change are backed up, "" if none are

    @property
    def is_isolated(self) -> bool:
        """Return whether a run reaches nothing but this machine's loopback."""
        return self.network == "loopback"

    @property
    def is_offline(self) -> bool:
        """Return whether experiment trackers are to stay offline: unless the network was asked for."""
        return self.network != "open"

    @property
    def text(self) -> str:
        """Return sentences for the question before the first run."""
        networks = {
            "loopback": "It has no network but this machine's loopback (--network opens it).",
            "open": "The network is open: a run may send data to servers.",
        }
        unknown = (
            f"The network stays open, since this system cannot isolate a run ({one_line(self.network)}); experiment "
            "trackers are set to offline mode by environment variables."
        )
        return f"{self._writes} {networks.get(self.network, unknown)}"

    @property
    def _writes(self) -> str:
        if self.writable is not None:
            names = [one_line(name) for name in dict.fromkeys(self.writable.values())]
            return f"A run may read other files, and write only to {', '.join(names[:-1])} and {names[-1]}."
        if not self.backup:
            return "A run may write wherever you may."
        return (
            "This system has no Landlock, so a run may write wherever you may; your files in the working folder, and "
            f"the targets of its links, are backed up to {one_line(self.backup)} first."
        )


def limits_of(
    private: Path, results: Path, writable: Iterable[Path] = (), *, restricted: bool = True, network: bool = False
) -> Limits:
    """Return what a run may write to and reach.

    Args:
        private: The folder that holds the copy; it is removed at the end.
        results: The folder of what the runs measured.
        writable: Other places that the user allows.
        restricted: Whether to protect the files outside the copy, if this system can.
        network: Whether the user allows the network.
    """
    allowed = tuple(str(path.resolve()) for path in writable)
    reached = "open" if network else why_not_isolated() or "loopback"
    if not restricted or not can_restrict():
        return Limits(None, reached, allowed, str(backup_place()) if restricted else "")
    places = {str(private.resolve()): COPY}
    places.setdefault(str(results.resolve()), RESULTS)
    places |= dict.fromkeys(_devices(), "devices")
    places |= {path: path for path in ("/proc", SHARED_MEMORY, *allowed)}
    return Limits(places, reached, allowed)


def _devices() -> Iterator[str]:
    """Yield the devices that are no disks, the terminals, and the pipes of CUDA's multi-process service."""
    yield "/dev/pts"
    named = []
    for here, folders, files in os.walk("/dev"):
        folders[:] = [name for name in folders if f"{here}/{name}" not in ("/dev/pts", SHARED_MEMORY)]
        named += [(f"{here}/{name}", stat.S_ISCHR) for name in files]
    with (
        contextlib.suppress(OSError),
        os.scandir(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps") as mps,
    ):
        named += [(entry.path, stat.S_ISFIFO) for entry in mps]
    for path, is_type in named:
        with contextlib.suppress(OSError):
            if is_type(os.lstat(path).st_mode):
                yield path


def offline_settings(folder: Path) -> Mapping[str, str]:
    """Return variables that keep trackers offline; what one keeps outside the working folder goes into ``folder``."""
    found = {name: value for name, value in OFFLINE.items() if os.environ.get(name) not in SILENT}
    found["WANDB_DATA_DIR"] = str(folder)
    if not (os.environ.get("MLFLOW_TRACKING_URI") or ".").startswith(("file:", "sqlite:", "/", ".")):
        found["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
    return found


def why_refused(failure: str, limits: Limits) -> str:
    """Return a sentence to follow one about a failed run, "" if the limits did not cause it."""
    if limits.writable is not None and REFUSED.search(failure):
        paths = [Path(quoted or bare) for quoted, bare in PATH.findall(failure)]
        for path in reversed(paths):  # a file that is renamed comes before its new name
            real = Path(os.path.realpath(path))
            there = next((each for each in (real, *real.parents) if each.exists()), real)
            if os.access(there, os.W_OK) and not any(real.is_relative_to(place) for place in limits.writable):
                return f" Runs may not write to {printable(path)}; --writable {printable(path.parent)} allows it."
        return "" if paths else " Runs may write to their copy only; --writable FOLDER allows another place."
    if limits.is_offline and UNREACHED.search(failure):
        return f" Runs {'have no network' if limits.is_isolated else 'are set to offline mode'}; --network opens it."
    return ""


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
        found |= {path: "was made at the target of a broken link" for path in self._missing if Path(path).exists()}
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
