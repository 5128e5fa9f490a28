"""What a run may write to and reach: one list, which the guard of a run enforces and `Limits.text` puts into words."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from diagnose.text.plain_text import one_line
from diagnose.trials.backup import backup_place
from diagnose.trials.isolation import SHARED_MEMORY, why_not_isolated
from diagnose.trials.protection import can_restrict

__all__ = ["Limits", "limits_of"]

MPS_VARIABLE, MPS_FOLDER = "CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"  # NVIDIA's default
COPY, RESULTS = "its own copy, home, caches and temporary files", "the folder of the results"


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
        return f"{self._writes} {self._network}"

    @property
    def _writes(self) -> str:
        if self.writable is None:
            return self._unprotected
        names = [one_line(name) for name in dict.fromkeys(self.writable.values())]
        return f"A run may read other files, and write only to {', '.join(names[:-1])} and {names[-1]}."

    @property
    def _unprotected(self) -> str:
        if not self.backup:
            return "A run may write wherever you may."
        return (
            "This system has no Landlock, so a run may write wherever you may; your files in the working folder, and "
            f"what its links lead to, are backed up to {one_line(self.backup)} first."
        )

    @property
    def _network(self) -> str:
        if self.is_isolated:
            return "It has no network but this machine's loopback (--network opens it)."
        if not self.is_offline:
            return "The network is open: a run may send data to servers."
        return (
            f"The network stays open, since this system cannot isolate a run ({one_line(self.network)}); experiment "
            "trackers are set to offline mode by environment variables."
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
    if not restricted:
        return Limits(None, reached, allowed)
    if not can_restrict():
        return Limits(None, reached, allowed, str(backup_place()))
    places = {str(private.resolve()): COPY}
    places.setdefault(str(results.resolve()), RESULTS)
    places |= dict.fromkeys(_devices(), "devices")
    places |= {"/proc": "/proc", SHARED_MEMORY: SHARED_MEMORY}
    places |= {path: path for path in allowed}
    return Limits(places, reached, allowed)


def _devices() -> Iterator[str]:
    """Yield the devices that are no disks, the terminals, and the pipes of CUDA's multi-process service."""
    yield "/dev/pts"
    for here, folders, files in os.walk("/dev"):
        folders[:] = [name for name in folders if f"{here}/{name}" not in ("/dev/pts", SHARED_MEMORY)]
        yield from (path for path in (f"{here}/{name}" for name in files) if _has_type(path, stat.S_ISCHR))
    with contextlib.suppress(OSError), os.scandir(os.environ.get(MPS_VARIABLE) or MPS_FOLDER) as entries:
        yield from (entry.path for entry in entries if _has_type(entry.path, stat.S_ISFIFO))


def _has_type(path: str, is_type: Callable[[int], bool]) -> bool:
    try:
        return is_type(os.lstat(path).st_mode)
    except OSError:
        return False
