"""Workers beyond this machine: Dask, by the executor that its client offers.

A worker needs this package, and sees the traces under the same paths or URLs. What dies is replaced and retried by
Dask's scheduler; a rank that ended several workers comes back as an error of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from diagnose.errors import InputError, UsageError, missing_extra
from diagnose.text.progress import Progress
from diagnose.trace_reader.inputs import RankFiles
from diagnose.trace_reader.stored import Stored, is_url

__all__ = ["Cluster", "check_cluster", "connected", "for_others"]

SLURM, FILE = "slurm", "file:"
CONNECT_S = 30.0
WORKERS_S = 120.0  # for the first worker to come: Slurm starts a step in seconds, once the nodes are there
_STOP_S = 10.0
_FORMS = "tcp://HOST:PORT, file:SCHEDULER.json or slurm"


class Cluster(NamedTuple):
    """Workers that take work."""

    executor: Executor
    num_workers: int  # threads of all of them


def check_cluster(address: str) -> None:
    """Check what can be checked before the work begins.

    Raises:
        UsageError: it is no address of a cluster, or Slurm is not at hand.
    """
    if address == SLURM:
        if not os.environ.get("SLURM_JOB_ID") or shutil.which("srun") is None:
            raise UsageError(
                "--cluster slurm needs an allocation: run it inside sbatch or salloc, or run diagnose analyze "
                "--partial in a job array and diagnose analyze --merge on its files."
            )
    elif not address.startswith(("tcp://", "tls://", "ucx://", "ws://", "wss://", FILE)):
        raise UsageError(f"Invalid --cluster '{address}': use {_FORMS}.")


@contextmanager
def connected(address: str, progress: Progress) -> Iterator[Cluster]:
    """Connect to the scheduler at an address, or start one of our own under Slurm, for as long as the block lasts.

    Raises:
        InputError: Dask is not installed, or no scheduler or worker answers.
    """
    check_cluster(address)
    try:
        from distributed import Client
    except ImportError:
        raise missing_extra("--cluster sends work by Dask", "cluster") from None
    with ExitStack() as stack:
        try:
            client: Any  # Dask has no types
            if address == SLURM:
                client = stack.enter_context(_under_slurm(progress))
            elif address.startswith(FILE):
                client = stack.enter_context(Client(scheduler_file=_scheduler_file(address), timeout=CONNECT_S))
            else:
                client = stack.enter_context(Client(address, timeout=CONNECT_S))
            client.wait_for_workers(1, timeout=WORKERS_S)
        except (OSError, TimeoutError, ValueError) as error:
            raise InputError(
                f"The cluster at {address} does not answer ({error or type(error).__name__}). "
                "Start its scheduler and at least one worker."
            ) from None
        num_workers = sum(client.nthreads().values())
        progress.report(f"{num_workers} workers of {address}")
        yield Cluster(client.get_executor(pure=False), num_workers)


def for_others(rank: RankFiles) -> RankFiles:
    """Return files as another machine finds them.

    Raises:
        InputError: they are in this process only.
    """
    file = rank.trace or rank.description
    if not isinstance(file, Stored) or file.path.startswith(f"/proc/{os.getpid()}/"):
        raise InputError(
            f"{file} is only here: a cluster cannot read a pipe or a compressed tar. Unpack it where workers see it."
        )
    if rank.trace is not None:
        return replace(rank, trace=_absolute(file))
    folder = rank.folder and replace(
        rank.folder,
        path=rank.folder.path if is_url(rank.folder.path) else os.path.abspath(rank.folder.path),
        members={name: _absolute(member) for name, member in rank.folder.members.items()},
    )
    return replace(rank, folder=folder, description=_absolute(file))


def _absolute(file: Stored) -> Stored:
    return file if is_url(file.path) else replace(file, path=os.path.abspath(file.path))  # links stay


def _scheduler_file(address: str) -> str:
    path = address.removeprefix(FILE).removeprefix("//")
    if not os.path.isfile(path):  # an odd name is no file
        raise InputError(f"{path} does not exist. Name the file that dask scheduler --scheduler-file wrote.")
    return path


@contextmanager
def _under_slurm(progress: Progress) -> Iterator[Any]:
    """Start a scheduler here, and by srun one worker for each task of the allocation."""
    from distributed import Client, LocalCluster

    host = socket.gethostname()
    with (
        LocalCluster(n_workers=0, host=host, dashboard_address=":0", protocol="tcp://", processes=False) as scheduler,
        _workers_by_srun(scheduler.scheduler_address, progress),
        Client(scheduler) as client,
    ):
        try:
            yield client
        finally:
            client.retire_workers(close_workers=True)  # they leave by themselves, and srun with them


@contextmanager
def _workers_by_srun(address: str, progress: Progress) -> Iterator[None]:
    options = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, *options]
    progress.report("starting a worker for each task of the allocation")
    quiet = {**os.environ, "DASK_LOGGING__DISTRIBUTED": "warning"}
    with subprocess.Popen(
        ["srun", "--overlap", *worker], stdout=subprocess.DEVNULL, start_new_session=True, env=quiet
    ) as srun:
        try:
            yield
        finally:
            _end(srun)


def _end(srun: subprocess.Popen[bytes]) -> None:
    """Wait until srun has left, and end it and what it started where it does not."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        try:
            srun.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(srun.pid, ending)
