"""What can be read of the running process from outside the script's code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["busy_share", "compiled_graphs", "resident_mb", "silent_stderr"]

STDERR = 2


def compiled_graphs() -> int:
    """Return how many graphs torch.compile has made so far."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"].get("unique_graphs", 0))


def resident_mb() -> float:
    """Return the memory that the process holds, 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError):  # not Linux
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def busy_share(pids: Iterable[int]) -> float | None:
    """Return which share of their lives so far these processes spent on a CPU; None where the system does not tell."""
    used = lived = 0.0
    try:
        now = float(Path("/proc/uptime").read_text().split()[0])
        tick = os.sysconf("SC_CLK_TCK")
        for pid in pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            used += (int(fields[11]) + int(fields[12])) / tick  # user and system time
            lived += now - int(fields[19]) / tick
    except (OSError, ValueError, IndexError):  # not Linux, or one has ended
        return None
    return used / lived if lived > 0 else None


@contextlib.contextmanager
def silent_stderr() -> Iterator[None]:
    """Send what C++ code writes to standard error nowhere: for microseconds only, as all threads share it."""
    try:
        kept = os.dup(STDERR)
    except OSError:  # closed: nothing to silence
        yield
        return
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), STDERR)
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
