"""Which rank a process is, as its launcher puts it into the environment, and how many cores it may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from diagnose.errors import UsageError


def usable_cores(root: Path = Path("/")) -> int:
    """Return the cores that the process can keep busy at once, at least 1; a quota of 2.5 cores counts as 2.

    The quotas are those of its control groups and of all around them, in either version, in the file system of a root.
    """
    quotas = [float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)]
    for folder, inner in _groups(root):
        for group in (inner, *inner.parents):
            with suppress(OSError, ValueError, ZeroDivisionError):
                quotas.append(_quota(folder / group))
    return max(1, math.floor(min(quotas)))


def cores_of_rank(on_this_node: int, root: Path = Path("/")) -> int:
    """Return the cores of one rank of several on this machine.

    A rank with fewer cores than the process that started it has been given them for itself; others share them.
    """
    with suppress(OSError, AttributeError):
        if os.sched_getaffinity(0) < os.sched_getaffinity(os.getppid()):
            return usable_cores(root)
    return max(1, usable_cores(root) // max(on_this_node, 1))


def _groups(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield for each hierarchy with CPU quotas where it is mounted and the process's group in it."""
    with suppress(OSError, UnicodeDecodeError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, _, group = line.partition(":")
            controllers, _, path = group.partition(":")
            folders = {"": ("",), "cpu": ("cpu",)}.get(controllers, (controllers, "cpu"))
            if not controllers or "cpu" in controllers.split(","):
                yield from ((root / "sys/fs/cgroup" / name, Path(path.lstrip("/"))) for name in folders)


def _quota(group: Path) -> float:
    """Return the cores that one group may use.

    Raises:
        OSError, ValueError: it has no quota.
    """
    combined = group / "cpu.max"
    if combined.exists():
        quota, period = combined.read_text(encoding="ascii").split()
    else:
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period"))
    if float(quota) <= 0:  # -1: none
        raise ValueError(quota)
    return float(quota) / float(period)


RECEIVED_FILE = "received.ranks"  # in a capture folder: the summaries of ranks whose captures lie elsewhere

RANKS_WAIT_S = 120.0  # ranks stop within a step of each other; what takes long is writing and reading their traces
JOB_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PMIX_NAMESPACE",
    "PMI_JOBID",
    "OMPI_MCA_ess_base_jobid",
)


class Launched(NamedTuple):
    """One process among those that torchrun, accelerate, srun or mpirun started."""

    rank: int = 0
    world_size: int = 1
    on_this_node: int = 1


class _Names(NamedTuple):
    """The variables of one kind of launcher; the number on a node may be missing."""

    rank: str
    size: str
    on_node: str


# The first that fits. What torchrun sets beats what the scheduler around it does. SLURM_STEP_NUM_TASKS is set in the
# steps of srun alone: in a batch script SLURM_NTASKS counts tasks that nobody has started.
_LAUNCHERS = (
    _Names("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    _Names("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    _Names("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
    _Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    _Names("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
)


def launched(environment: Mapping[str, str] = os.environ) -> Launched:
    """Return rank, number of ranks, and how many of them run on this machine.

    Raises:
        UsageError: a variable is not a number, or the rank is none of the job's.
    """
    for names in _LAUNCHERS:
        if names.rank not in environment and (names is not _LAUNCHERS[0] or names.size not in environment):
            continue
        if names is not _LAUNCHERS[0] and names.size not in environment:
            continue
        found = _read(environment, names)
        if found.world_size > 1 or names is _LAUNCHERS[0]:
            return found
    return Launched()


def _read(environment: Mapping[str, str], names: _Names) -> Launched:
    try:
        rank = int(environment.get(names.rank, "0"))
        size = int(environment.get(names.size, "1"))
        text = environment.get(names.on_node, "")
        on_node = _on_node(text, environment) if "SLURM" in names.on_node else int(text or size)
    except ValueError as error:
        raise UsageError(f"{', '.join(names)} must be integers ({error}); unset them, or set all three.") from error
    if not 0 <= rank < max(size, 1):
        raise UsageError(
            f"Invalid {names.rank}={rank}: use 0 to {max(size, 1) - 1} for {names.size}={size}, or unset both."
        )
    return Launched(rank, max(size, 1), max(min(on_node or size, size), 1))


def _on_node(text: str, environment: Mapping[str, str]) -> int:
    """Return the tasks on this node from a text such as "4(x2),1": four on each of two nodes, one on the next."""
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        num, _, times = part.partition("(x")
        counts += [int(num)] * int(times.rstrip(")") or "1") if times else [int(num)]
    node = int(environment.get("SLURM_NODEID", "0"))
    return counts[node] if node < len(counts) else 0
