"""What can be read of the running process from outside the script's code."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

__all__ = ["STDERR", "busy_share", "compiled_graphs", "heap_mb", "silent_stderr"]

STDERR = 2
PROC = Path("/proc")


def compiled_graphs() -> int:
    """Return how many graphs torch.compile has made so far."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"].get("unique_graphs", 0))


class _Mallinfo(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


PROBE_BYTES = 64_000


def heap_mb() -> float | None:
    """Return how much is allocated by malloc, None where the allocator does not count it."""
    reader = _heap_reader()
    return reader() / 1e6 if reader is not None else None


@lru_cache(maxsize=1)
def _heap_reader() -> Callable[[], int] | None:
    """Return a reader of the allocated bytes, None where malloc is not glibc's: another one would leave it still."""
    libc = ctypes.CDLL(None)
    try:
        mallinfo, malloc, free = libc.mallinfo2, libc.malloc, libc.free
    except AttributeError:  # no glibc, or one before 2.33
        return None
    mallinfo.restype, malloc.restype = _Mallinfo, ctypes.c_void_p
    malloc.argtypes, free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]

    def allocated() -> int:
        info = mallinfo()
        return int(info.uordblks) + int(info.hblkhd)

    before = allocated()
    block = malloc(PROBE_BYTES)
    grown = allocated() - before
    free(block)
    return allocated if grown >= PROBE_BYTES // 2 else None


def busy_share(pids: Iterable[int]) -> float | None:
    """Return the share of their lifetime that these processes spent on a CPU; None where it is unknown."""
    used = lived = 0.0
    try:
        now = float((PROC / "uptime").read_text().split()[0])
        tick = os.sysconf("SC_CLK_TCK")
        for pid in pids:
            fields = (PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()
            used += (int(fields[11]) + int(fields[12])) / tick  # user and system time
            lived += now - int(fields[19]) / tick
    except (OSError, ValueError, IndexError):  # not Linux, or one has ended
        return None
    return used / lived if lived > 0 else None


@contextlib.contextmanager
def silent_stderr() -> Iterator[None]:
    """Send what C++ code writes to standard error nowhere: for microseconds only, as all threads share it."""
    with contextlib.ExitStack() as opened:
        try:
            kept = os.dup(STDERR)
            opened.callback(os.close, kept)
            nowhere = opened.enter_context(Path(os.devnull).open("wb"))
        except OSError:  # standard error is closed, or no descriptor is left: nothing is silenced
            yield
            return
        os.dup2(nowhere.fileno(), STDERR)
        try:
            yield
        finally:
            os.dup2(kept, STDERR)
