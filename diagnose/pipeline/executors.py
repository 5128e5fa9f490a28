"""Runs a function on the files of many ranks: in this process or in several of this machine.

Processes are fed a few ranks ahead, so that memory does not grow with the number of ranks. A process that dies takes
nothing with it: what it was working on is done again alone, and only a rank that kills its process each time is given
up and named.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import TypeAlias

from diagnose.pipeline.rank_results import Outcome, Work, attempt
from diagnose.trace_reader.inputs import RankFiles

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
