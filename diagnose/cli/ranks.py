"""What the launcher's environment holds about the ranks of a run, and waiting for their captures."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.model.launched import Launched
from diagnose.text.commands import command_line
from diagnose.text.plain_text import one_line
from diagnose.text.progress import Progress

__all__ = ["chosen_ranks", "named_after", "wait_for_others"]

WAIT_S = 120.0  # ranks stop within a step of each other; what takes long is writing and compressing their traces
POLL_S = 0.2
STAMP = "%Y%m%d-%H%M%S"
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?", re.ASCII)


def chosen_ranks(text: str, world_size: int) -> frozenset[int]:
    """Return the ranks that a text such as "0,1,8-15" names.

    Raises:
        UsageError: it names none, or one that the job does not have.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise UsageError(f"Invalid --ranks '{one_line(text)}': give numbers and ranges, such as 0,1,8-15.")
        last = int(found[2] or found[1])
        if last >= world_size:
            raise UsageError(f"Invalid --ranks '{one_line(text)}': the job has ranks 0 to {world_size - 1}.")
        ranks.update(range(int(found[1]), last + 1))
    return frozenset(ranks)


def named_after(stem: str, ranks: Launched) -> str:
    """Return a name for this run that no earlier run used, the same in every rank of one node.

    Ranks share their launcher, so its start is their common time; a lone process has its own. Steps of Slurm have a
    number that all their nodes share.
    """
    if ranks.world_size == 1:
        name = f"{stem}-{time.strftime(STAMP)}"
        return name if not Path(name).exists() else f"{name}-{os.getpid()}"
    step = os.environ.get("SLURM_STEP_ID", "")
    if "SLURM_STEP_NUM_TASKS" in os.environ and "TORCHELASTIC_RUN_ID" not in os.environ and step.isdigit():
        return f"{stem}-slurm-{os.environ.get('SLURM_JOB_ID', '0')}-{step}"
    restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return f"{stem}-{_launched(os.getppid())}" + (f"-restart{restart}" if restart else "")


def wait_for_others(
    folder: Path, ranks: Launched, *, chosen: Collection[int], whole_world: bool, progress: Progress
) -> tuple[str, ...]:
    """Wait until the captures of the ``chosen`` ranks lie in ``folder``; return a note where some never came.

    Only a folder that the user named, or that ranks of other nodes write to, is known to be shared by all nodes; else
    the ranks of this node are waited for.
    """
    if ranks.world_size == 1:
        return ()
    here = len(chosen) * min(ranks.on_this_node, ranks.world_size) // ranks.world_size
    end = time.monotonic() + WAIT_S

    def num_expected() -> int:
        return len(chosen) if whole_world or _num_writers(folder) > here else max(here, 1)

    def num_there() -> int:
        return len(chosen) - len(_missing(folder, chosen))

    if num_there() < num_expected():
        with progress.phase(f"waiting for the captures of {num_expected()} ranks"):
            while num_there() < num_expected() and time.monotonic() < end:
                time.sleep(POLL_S)
    missing = _missing(folder, chosen)
    if not missing:
        return ()
    again = command_line(["diagnose", "analyze", str(folder)])
    listed = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
    return (
        f"The capture of rank {listed} of {ranks.world_size} is missing, so skew between ranks is incomplete; use "
        f"--capture with a folder that all nodes share, or run {again} when all captures are there.",
    )


def _num_writers(folder: Path) -> int:
    """Return how many ranks have written into the folder, or reserved it."""
    written = {path.name.removeprefix("capture.").removesuffix(".json") for path in folder.glob("capture.rank*.json")}
    reserved = {path.name.removeprefix(".").removesuffix(".lock") for path in folder.glob(".rank*.lock")}
    return len(written | reserved)


def _missing(folder: Path, chosen: Collection[int]) -> list[int]:
    return [rank for rank in sorted(chosen) if not (folder / f"capture.rank{rank}.json").exists()]


def _launched(pid: int) -> str:
    """Return when a process started; its id where the system does not show it."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        ticks = int(after_name[19])
        return time.strftime(STAMP, time.localtime(int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")))
    except (OSError, ValueError, IndexError, StopIteration):
        return str(pid)
