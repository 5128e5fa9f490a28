"""Who reads the ranks: this process, several of this machine, or the workers of a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from diagnose.errors import UsageError
from diagnose.pipeline.cache import Cache
from diagnose.pipeline.rank_results import Outcome, Work
from diagnose.text.progress import Progress
from diagnose.trace_reader.inputs import Inputs, RankFiles
from diagnose.trace_reader.stored import Stored, is_url

__all__ = ["RankRunner", "Results", "Workers", "processes_of_one_file", "started_workers"]

Results: TypeAlias = Iterator[tuple[int, Outcome]]
RankRunner: TypeAlias = Callable[[Work, Sequence[RankFiles]], Results]

MIN_BYTES_FOR_PROCESSES = 16 << 20  # of all files: starting processes takes as long as reading about as much
MAX_PROCESSES_OF_ONE_FILE = 4  # beyond, joining the columns and analysing them takes longer than reading
MIN_PROCESS_BYTES = 256 << 20  # that a process has to be allowed: it holds the program, and a trace of usual size


@dataclass(frozen=True, slots=True)
class Workers:
    """Who reads the ranks."""

    num: int | None = None  # processes; None: as many as cores, where there is enough to read
    max_bytes: int | None = None  # of all processes together
    cluster: str = ""  # address of a Dask scheduler, or slurm; "": this machine
    cache: Cache | None = None  # of what they computed before

    def check(self) -> None:
        """Check what can be checked before the work begins.

        Raises:
            UsageError: the options contradict each other, or are too little to work with.
        """
        if self.cluster:
            from diagnose.pipeline.cluster import check_cluster

            check_cluster(self.cluster)
            if self.num is not None or self.max_bytes is not None:
                raise UsageError("--workers and --max-memory are for this machine; leave them out with --cluster.")
        if self.max_bytes is not None and self.max_bytes < MIN_PROCESS_BYTES * (self.num or 1):
            raise UsageError(
                f"--max-memory is too little: each process needs {MIN_PROCESS_BYTES >> 20}M. Give more, or fewer "
                "--workers."
            )


@contextmanager
def started_workers(workers: Workers, inputs: Inputs, progress: Progress) -> Iterator[RankRunner]:
    """Offer who does the work, for as long as the block lasts; one rank from the cache needs nobody."""
    from diagnose.pipeline.executors import Processes, on_executor

    if not workers.cluster:
        with Processes(*_processes(workers, inputs.ranks)) as processes:
            yield processes.run
        return
    from diagnose.pipeline.cluster import connected, for_others

    with connected(workers.cluster, progress) as cluster:
        yield lambda work, ranks: on_executor(
            cluster.executor, cluster.num_workers, work, [for_others(rank) for rank in ranks]
        )


def _processes(workers: Workers, ranks: Sequence[RankFiles]) -> tuple[int, int | None]:
    """Return how many processes read, and the bytes that each of them may hold."""
    if any(not isinstance(rank.trace, (Stored, type(None))) for rank in ranks):
        return 1, None  # a pipe is open in this process only
    num = workers.num or (len(os.sched_getaffinity(0)) if _is_much(ranks) else 1)
    if workers.max_bytes is None:
        return num, None
    num = max(1, min(num, workers.max_bytes // MIN_PROCESS_BYTES))
    return num, workers.max_bytes // num


def processes_of_one_file(workers: Workers) -> int:
    """Return how many processes read one file, if it is large."""
    if workers.max_bytes is not None:
        return 1  # of which all columns have to fit into one
    return workers.num or min(len(os.sched_getaffinity(0)), MAX_PROCESSES_OF_ONE_FILE)


def _is_much(ranks: Sequence[RankFiles]) -> bool:
    """Return whether there is enough to read for several processes."""
    if len(ranks) < 2:
        return False
    size = 0
    for rank in ranks:
        file = rank.trace
        if not isinstance(file, Stored) or is_url(file.path):
            return True  # a capture, or something far away
        size += file.size if file.size is not None else _size(file.path)
        if size >= MIN_BYTES_FOR_PROCESSES:
            return True
    return False


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except (OSError, ValueError):
        return 0
