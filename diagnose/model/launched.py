"""Which rank a process is, as the program that launched it puts it into the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from diagnose.errors import UsageError

__all__ = ["JOB_VARIABLES", "RECEIVED_FILE", "Launched", "launched"]

RECEIVED_FILE = "received.ranks"  # in a capture folder: the summaries of ranks whose captures lie elsewhere

# What the ranks of one run share, whoever launched them.
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
