"""Runs a function on the files of many ranks: in this process, in several, or on a cluster.

All of them are executors as ``concurrent.futures`` has them, and are fed a few ranks ahead, so that memory does not
grow with their number. A process that dies takes nothing with it: what it was working on is done again alone, and
only a rank that kills its process each time is given up and named.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from diagnose.errors import InputError, UsageError, missing_extra
from diagnose.pipeline.rank_results import Outcome, Work, attempt, describe
from diagnose.text.progress import Progress
from diagnose.trace_reader.inputs import Folder, RankFiles
from diagnose.trace_reader.stored import Stored, is_url

__all__ = ["Processes", "check_cluster", "connected", "for_others", "on_executor"]

# Workers beyond this machine: Dask, by the executor that its client offers.
#
# A worker needs this package, and sees the traces under the same paths or URLs. What dies is replaced and retried by
# Dask's scheduler; a rank that ended several workers comes back as an error of its own.

SLURM, FILE = "slurm", "file:"
CONNECT_S = 30.0
WORKERS_S = 120.0  # for the first worker to come: Slurm starts a step in seconds, once the nodes are there
_STOP_S = 10.0
_FORMS = "tcp://HOST:PORT, file:SCHEDULER.json or slurm"


Where = TypeVar("Where", Stored, Folder)


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
def connected(address: str, progress: Progress, *, wait_s: float = CONNECT_S) -> Iterator[Cluster]:
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
                client = stack.enter_context(Client(scheduler_file=_scheduler_file(address), timeout=wait_s))
            else:
                client = stack.enter_context(Client(address, timeout=wait_s))
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
    if not isinstance(file, Stored):
        raise InputError(f"{file} is only here: a cluster cannot read a pipe. Write it to a file that workers see.")
    if rank.trace is not None:
        return replace(rank, trace=_absolute(file))
    return replace(rank, folder=rank.folder and _absolute(rank.folder), description=_absolute(file))


def _absolute(file: Where) -> Where:
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


Results = Iterator[tuple[int, Outcome]]

AHEAD = 2  # ranks for each worker that are handed out before it asks: none waits for this process
MAX_DEATHS = 2  # of a process with nothing but one rank, from which on that rank is given up
# What every process would import for itself.
_PRELOADED = ("diagnose.pipeline.rank", "diagnose.ranks.measure", "diagnose.trace_reader.folders")


def on_executor(executor: Executor, num_workers: int, work: Work, ranks: Sequence[RankFiles]) -> Results:
    """Yield the position and the outcome of every rank, in the order in which they end.

    Raises:
        BrokenProcessPool: a process of a local pool has died.
    """
    yield from _Queue(work, ranks).run(executor, num_workers)


class Processes:
    """The same on processes of this machine, which stay from one kind of work to the next; one worker is this process.

    ``max_bytes`` is what one process may hold; a rank that needs more is named.
    """

    def __init__(self, num_workers: int, max_bytes: int | None = None) -> None:
        self._num_workers, self._max_bytes = num_workers, max_bytes
        self._pool: ProcessPoolExecutor | None = None
        self._size = 0  # processes of the pool

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(waits=kind is None)

    def run(self, work: Work, ranks: Sequence[RankFiles]) -> Results:
        """Yield the position and the outcome of every rank, in the order in which they end."""
        if self._num_workers <= 1 and self._max_bytes is None:
            yield from ((i, attempt(work, rank)) for i, rank in enumerate(ranks))
            return
        queue = _Queue(work, ranks)
        while queue.waiting:
            try:
                yield from queue.run(self._started(len(queue.waiting)), self._num_workers)
            except BrokenProcessPool:
                self._end(waits=False)
                for i in queue.take_running():
                    yield i, _alone(work, ranks[i], self._max_bytes)

    def once(self, work: Work, files: RankFiles) -> Outcome:
        """Return the outcome of one rank.

        Raises:
            BrokenProcessPool: its process has died.
        """
        return _outcome(self._started(1).submit(attempt, work, files), files)

    def _started(self, num_ranks: int) -> ProcessPoolExecutor:
        size = min(self._num_workers, num_ranks)
        if self._size < size:
            self._end(waits=True)
        if self._pool is None:
            given = (self._max_bytes,)
            self._pool = ProcessPoolExecutor(size, mp_context=_context(), initializer=_begin, initargs=given)
            self._size = size
        return self._pool

    def _end(self, *, waits: bool) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=waits, cancel_futures=not waits)
            self._pool = None


class _Queue:
    """Ranks that wait for a worker, and those that have one, also when a process has died."""

    def __init__(self, work: Work, ranks: Sequence[RankFiles]) -> None:
        self._work = work
        self._ranks = ranks
        self.waiting = deque(range(len(ranks)))
        self._running: dict[Future[Outcome], int] = {}

    def run(self, executor: Executor, num_workers: int) -> Results:
        """Work it off.

        Raises:
            BrokenProcessPool: a process of a local pool has died.
        """
        while self.waiting or self._running:
            while self.waiting and len(self._running) < AHEAD * num_workers:
                future = executor.submit(attempt, self._work, self._ranks[self.waiting[0]])
                self._running[future] = self.waiting.popleft()
            done, _ = wait(self._running, return_when=FIRST_COMPLETED)
            for future in done:
                outcome = _outcome(future, self._ranks[self._running[future]])
                yield self._running.pop(future), outcome

    def take_running(self) -> list[int]:
        """Return what was under way, of which one has ended its process; it no longer is."""
        taken = sorted(self._running.values())
        self._running.clear()
        return taken


def _outcome(future: Future[Outcome], files: RankFiles) -> Outcome:
    try:
        return future.result()
    except BrokenProcessPool:
        raise
    except Exception as error:  # of a cluster: a rank that ended several workers, or that could not be sent
        return Outcome(b"", f"{files} could not be analysed by a worker ({describe(error)}), and was left out.")


def _alone(work: Work, files: RankFiles, max_bytes: int | None) -> Outcome:
    for _ in range(MAX_DEATHS):
        try:
            with Processes(1, max_bytes) as alone:
                return alone.once(work, files)
        except BrokenProcessPool:
            continue
    return Outcome(
        b"",
        f"{files} ended its process {MAX_DEATHS} times, and was left out. Memory may be short: give --workers less.",
    )


def _context() -> BaseContext:
    """Return how processes are started: by a fork, which is ready at once, or beside threads by a server that forks."""
    if threading.active_count() == 1:
        for module in _PRELOADED:
            import_module(module)
        return get_context("fork")
    context = get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context


def _begin(max_bytes: int | None) -> None:
    """Prepare a process: it ends with its parent, leaves Ctrl-C to it, and holds no more than it may."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if max_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
