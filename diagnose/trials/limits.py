"""What a run may write to and reach: one list, which the guard of a run enforces and `Limits.text` puts into words.

What such a limit has refused gets a sentence with the option that allows it; experiment trackers are kept offline.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from diagnose.model.files import printable
from diagnose.text.plain_text import one_line
from diagnose.trials.guard import SHARED_MEMORY, can_restrict, why_not_isolated
from diagnose.trials.originals import backup_place

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
            f"what its links lead to, are backed up to {one_line(self.backup)} first."
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
