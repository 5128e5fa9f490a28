"""Runs a function on the files of many ranks: in this process, in several of this machine, or on a Dask cluster.

Processes are fed a few ranks ahead, so that memory does not grow with the number of ranks. A process that dies takes
nothing with it: what it was working on is done again alone, and only a rank that kills its process each time is given
up and named.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

from diagnose.errors import InputError, UsageError, missing_extra
from diagnose.model.files import printable
from diagnose.pipeline.rank_results import Outcome, Work, attempt, describe
from diagnose.trace_reader.inputs import RankFiles
from diagnose.trace_reader.stored import Stored, is_url

Results: TypeAlias = Iterator[tuple[int, Outcome]]

MAX_DEATHS = 2  # of a process with nothing but one rank, from which on that rank is given up
# What every process would import for itself.
_PRELOADED = ("diagnose.pipeline.rank", "diagnose.ranks.measure", "diagnose.trace_reader.folders")


class Processes:
    """Processes of this machine, which stay from one kind of work to the next; one worker is this process."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(waits=kind is None)

    def run(self, work: Work, ranks: Sequence[RankFiles]) -> Results:
        """Yield the position and the outcome of every rank, in the order in which they end."""
        if self._num_workers <= 1:
            yield from ((i, attempt(work, rank)) for i, rank in enumerate(ranks))
            return
        waiting = deque(range(len(ranks)))
        running: dict[Future[Outcome], int] = {}
        while waiting or running:
            self._pool = self._pool or _started(min(self._num_workers, len(ranks)))
            try:
                # A rank is handed out before a worker asks: none waits for this process.
                while waiting and len(running) < 2 * self._num_workers:
                    future = self._pool.submit(attempt, work, ranks[waiting[0]])
                    running[future] = waiting.popleft()
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    outcome = future.result()
                    yield running.pop(future), outcome
            except BrokenProcessPool:
                self._end(waits=False)
                for i in sorted(running.values()):
                    yield i, _alone(work, ranks[i])
                running.clear()

    def _end(self, *, waits: bool) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=waits, cancel_futures=not waits)
            self._pool = None


def _alone(work: Work, files: RankFiles) -> Outcome:
    for _ in range(MAX_DEATHS):
        with _started(1) as pool:
            try:
                return pool.submit(attempt, work, files).result()
            except BrokenProcessPool:
                continue
    return Outcome(
        b"",
        f"{files} ended its process {MAX_DEATHS} times, and was left out. Memory may be short: give --workers less.",
    )


def _started(num_processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(num_processes, mp_context=_context(), initializer=_begin)


def _context() -> BaseContext:
    """Return how processes are started: by a fork, which is ready at once, or beside threads by a server that forks."""
    if threading.active_count() == 1:
        for module in _PRELOADED:
            import_module(module)
        return get_context("fork")
    context = get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context


def _begin() -> None:
    """Prepare a process: it ends with its parent, and leaves Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


SLURM, FILE = "slurm", "file:"


class Cluster(NamedTuple):
    """Workers of a Dask scheduler.

    Each needs this package, and sees the traces under the same paths or URLs. The scheduler replaces a worker that dies
    and retries its rank; a rank that ended several workers is given up and named.
    """

    executor: Executor

    def run(self, work: Work, ranks: Sequence[RankFiles]) -> Results:
        """Yield the position and the outcome of every rank, in the order in which they end.

        Raises:
            InputError: the files of a rank are in this process only.
        """
        sent = [for_others(files) for files in ranks]
        running = {self.executor.submit(attempt, work, files): i for i, files in enumerate(sent)}
        for future in as_completed(list(running)):
            i = running.pop(future)
            try:
                yield i, future.result()
            except Exception as error:  # a rank that ended several workers, or that could not be sent
                sentence = f"{ranks[i]} could not be analysed by a worker ({describe(error)}), and was left out."
                yield i, Outcome(b"", sentence)


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
        raise UsageError(
            f"Invalid --cluster '{printable(address)}': use tcp://HOST:PORT, file:SCHEDULER.json or slurm."
        )


@contextmanager
def connected(address: str, *, wait_s: float = 30.0) -> Iterator[Cluster]:
    """Connect to the scheduler at an address, or start our own under Slurm, for as long as the block lasts.

    Raises:
        InputError: Dask is not installed, or no scheduler or worker answers within ``wait_s``.
    """
    try:
        from distributed import Client
    except ImportError:
        raise missing_extra("--cluster sends work by Dask", "cluster") from None
    with ExitStack() as stack:
        try:
            client: Any  # Dask has no types
            if address == SLURM:
                client = stack.enter_context(_under_slurm())
            elif address.startswith(FILE):
                client = stack.enter_context(Client(scheduler_file=_scheduler_file(address), timeout=wait_s))
            else:
                client = stack.enter_context(Client(address, timeout=wait_s))
            client.wait_for_workers(1, timeout=4 * wait_s)  # Slurm starts a step in seconds on nodes that are there
        except (OSError, TimeoutError, ValueError) as error:
            raise InputError(
                f"The cluster at {address} does not answer ({error or type(error).__name__}). "
                "Start its scheduler and at least one worker."
            ) from None
        yield Cluster(client.get_executor(pure=False))


def for_others(rank: RankFiles) -> RankFiles:
    """Return files as another machine finds them."""
    file = rank.trace or rank.description
    if not isinstance(file, Stored) or file.path.startswith(f"/proc/{os.getpid()}/"):
        raise InputError(f"{file} is only here: a cluster cannot read a pipe. Write it to a file where workers see it.")
    if rank.trace is not None:
        return replace(rank, trace=_absolute(file))
    folder = rank.folder
    if folder is not None and not is_url(folder.path):
        folder = replace(folder, path=os.path.abspath(folder.path))
    return replace(rank, folder=folder, description=_absolute(file))


def _absolute(file: Stored) -> Stored:
    return file if is_url(file.path) else replace(file, path=os.path.abspath(file.path))  # links stay


def _scheduler_file(address: str) -> str:
    path = address.removeprefix(FILE).removeprefix("//")
    if not os.path.isfile(path):  # an odd name is no file
        raise InputError(f"{path} does not exist. Name the file that dask scheduler --scheduler-file wrote.")
    return path


@contextmanager
def _under_slurm() -> Iterator[Any]:
    """Start a scheduler here, and by srun one worker for each task of the allocation."""
    from distributed import Client, LocalCluster

    host = socket.gethostname()
    with (
        LocalCluster(n_workers=0, host=host, dashboard_address=":0", protocol="tcp://", processes=False) as scheduler,
        _workers_by_srun(scheduler.scheduler_address),
        Client(scheduler) as client,
    ):
        try:
            yield client
        finally:
            client.retire_workers(close_workers=True)  # they leave by themselves, and srun with them


@contextmanager
def _workers_by_srun(address: str) -> Iterator[None]:
    options = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, *options]
    quiet = {**os.environ, "DASK_LOGGING__DISTRIBUTED": "warning"}
    with subprocess.Popen(
        ["srun", "--overlap", *worker], stdout=subprocess.DEVNULL, start_new_session=True, env=quiet
    ) as srun:
        try:
            yield
        finally:
            for ending in (signal.SIGTERM, signal.SIGKILL):
                try:
                    srun.wait(10.0)  # that srun has to leave before it is ended
                except subprocess.TimeoutExpired:
                    os.killpg(srun.pid, ending)
