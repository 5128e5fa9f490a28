"""What the launcher's environment holds about the ranks of a run, and waiting for their captures."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.text.progress import Progress

__all__ = ["Ranks", "current", "named_after", "wait_for_others"]

WAIT_S = 120.0  # ranks stop within a step of each other; what takes long is writing and compressing their traces
POLL_S = 0.2
STAMP = "%Y%m%d-%H%M%S"


@dataclass(frozen=True, slots=True)
class Ranks:
    """One process among those that torchrun, accelerate or another launcher started."""

    rank: int = 0
    world_size: int = 1
    on_this_node: int = 1


def current(environment: Mapping[str, str] = os.environ) -> Ranks:
    """Read RANK, WORLD_SIZE and LOCAL_WORLD_SIZE, the variables that every PyTorch launcher sets.

    Raises:
        UsageError: one of them is not a number.
    """
    try:
        rank = int(environment.get("RANK", "0"))
        world_size = int(environment.get("WORLD_SIZE", "1"))
        return Ranks(rank, world_size, int(environment.get("LOCAL_WORLD_SIZE", str(world_size))))
    except ValueError as error:
        raise UsageError(
            f"RANK, WORLD_SIZE and LOCAL_WORLD_SIZE must be integers ({error}); unset them, or set all three."
        ) from error


def named_after(stem: str, ranks: Ranks) -> str:
    """Return a name for this run that no earlier run used, the same in every rank of one node.

    Ranks share their launcher, so its start is their common time; a lone process has its own.
    """
    if ranks.world_size == 1:
        name = f"{stem}-{time.strftime(STAMP)}"
        return name if not Path(name).exists() else f"{name}-{os.getpid()}"
    restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return f"{stem}-{_launched(os.getppid())}" + (f"-restart{restart}" if restart else "")


def wait_for_others(folder: Path, ranks: Ranks, *, whole_world: bool, progress: Progress) -> tuple[str, ...]:
    """Wait until the captures of all ranks lie in ``folder``; return a note where some never came.

    Only a folder that the user named is known to be shared by all nodes; else the ranks of this node are waited for.
    """
    expected = ranks.world_size if whole_world else min(ranks.on_this_node, ranks.world_size)
    end = time.monotonic() + WAIT_S
    if _missing(folder, expected):
        with progress.phase(f"waiting for the captures of {expected} ranks"):
            while _missing(folder, expected) and time.monotonic() < end:
                time.sleep(POLL_S)
    missing = _missing(folder, ranks.world_size)
    if ranks.world_size == 1 or not missing:
        return ()
    listed = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
    return (
        f"The capture of rank {listed} of {ranks.world_size} is missing, so skew between ranks is incomplete; use "
        f"--capture with a folder that all nodes share, or run diagnose analyze {folder} when all captures are there.",
    )


def _missing(folder: Path, count: int) -> list[int]:
    if count == 1:
        return []
    return [rank for rank in range(count) if not (folder / f"capture.rank{rank}.json").exists()]


def _launched(pid: int) -> str:
    """Return when a process started; its id where the system does not show it."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        ticks = int(after_name[19])
        return time.strftime(STAMP, time.localtime(int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")))
    except (OSError, ValueError, IndexError, StopIteration):
        return str(pid)
