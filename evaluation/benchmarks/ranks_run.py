"""Runs the command, and notes what each of its processes did when.

Usage: ranks_run.py LOG analyze FOLDER …

A line of LOG is a ``Note`` as JSON. The last line of standard error has the CPU seconds of all processes and of this
one, and the peaks of this one and of the largest other one in MB.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

START = time.monotonic()
Value = TypeVar("Value")


class Note(NamedTuple):
    """One piece of work of one process."""

    process: int
    what: str
    begin: float  # s since the start
    end: float
    cpu_begin: float  # CPU seconds of that process so far
    cpu_end: float


def noting(log: int, what: str, work: Callable[..., Value]) -> Callable[..., Value]:
    """Return the function with a note of each call; of a rank's work the note has the name of that."""

    @functools.wraps(work)  # by whose module and name a pool of processes finds it
    def noted(*args: object, **more: object) -> Value:
        begin, cpu = time.monotonic() - START, time.process_time()
        try:
            return work(*args, **more)
        finally:
            name = what or getattr(getattr(args[0], "func", args[0]), "__name__", "")
            note = Note(os.getpid(), name, begin, time.monotonic() - START, cpu, time.process_time())
            os.write(log, f"{json.dumps(note)}\n".encode())  # one write: lines of several processes stay whole

    return noted


def main(log: str, arguments: list[str]) -> int:
    from diagnose.cli.main import COLLECT_AFTER, run
    from diagnose.cli.options import one_thread

    one_thread()  # as the command does before it imports NumPy, which is imported here
    gc.set_threshold(COLLECT_AFTER)
    from diagnose.pipeline import executors, job, rank_results

    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    rank_results.attempt = executors.attempt = noting(file, "", rank_results.attempt)
    for module, name in ((job, "list_inputs"), (job, "_profiled"), (job, "_answer"), (executors, "_context")):
        setattr(module, name, noting(file, name, getattr(module, name)))
    code = noting(file, "command", run)(arguments)
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    mine, theirs = own.ru_utime + own.ru_stime, others.ru_utime + others.ru_stime
    print(f"\n{mine + theirs} {mine} {own.ru_maxrss / 1024} {others.ru_maxrss / 1024}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
