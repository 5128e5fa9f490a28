"""What the processes that load batches read and compute: Linux's own counters, read at the ends of each window.

Reading them takes some 0.1 ms a process, outside the steps that are timed. A worker that is replaced at the begin of an
epoch counts from its first reading to its last one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["LoadingCounters"]

PROC = Path("/proc")
MIN_S = 0.05  # shorter intervals are about a few ticks of the clock
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class _Reading(NamedTuple):
    """One process at one moment; None where the kernel does not show it."""

    time_s: float
    disk_bytes: int | None  # fetched from storage
    read_bytes: int | None  # returned by reads, from storage or the page cache, pipes and sockets included
    major_faults: int
    user_s: float
    system_s: float
    swap_bytes: int


class LoadingCounters:
    """Sums up what the loading processes did between the first reading and the last."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._first: dict[int, _Reading] = {}
        self._last: dict[int, _Reading] = {}
        self._batches = [0, 0]  # delivered at the first and at the last reading
        self._in_workers = False

    def read(self, workers: Sequence[int], batches: int) -> None:
        """Take a reading of the workers, of this process where there are none; ``batches`` were delivered so far."""
        if bool(workers) != self._in_workers or not self._first:
            self._first.clear()
            self._last.clear()
            self._in_workers = bool(workers)
            self._batches[0] = batches
        self._batches[1] = batches
        for pid in workers or [os.getpid()]:
            reading = _read(self._proc / str(pid))
            if reading is not None:
                self._first.setdefault(pid, reading)
                self._last[pid] = reading

    def summary(self, batch_size: int | None) -> dict[str, float]:
        """Return what was measured by the names of the loader's record; what is not known is missing."""
        pairs = [(first, self._last[pid]) for pid, first in self._first.items()]
        pairs = [(a, b) for a, b in pairs if b.time_s - a.time_s >= MIN_S]
        if not pairs:
            return {}
        lasted = max(b.time_s - a.time_s for a, b in pairs)
        lived = sum(b.time_s - a.time_s for a, b in pairs)
        user = sum(b.user_s - a.user_s for a, b in pairs)
        system = sum(b.system_s - a.system_s for a, b in pairs)
        found = {
            "processes": float(len(pairs)),
            "counted_s": lasted,
            "cpu_share": (user + system) / lived,
            "major_faults_per_s": sum(b.major_faults - a.major_faults for a, b in pairs) / lasted,
            "swapped_mb": sum(b.swap_bytes for _, b in pairs) / 1e6,
        }
        if all(None not in (*a, *b) for a, b in pairs):
            disk, read = (sum((b[i] or 0) - (a[i] or 0) for a, b in pairs) for i in (1, 2))
            found |= {"disk_mb_per_s": disk / 1e6 / lasted, "read_mb_per_s": read / 1e6 / lasted}
            if read > 0:
                found["cached_share"] = min(1.0, max(0.0, 1 - disk / read))
        samples = (self._batches[1] - self._batches[0]) * (batch_size or 0)
        if self._in_workers and samples > 0:  # in the training process most of the CPU time is the training's
            found |= {"user_ms_per_sample": user * 1e3 / samples, "system_ms_per_sample": system * 1e3 / samples}
        return {name: round(value, 4) for name, value in found.items()}


def _read(process: Path) -> _Reading | None:
    """Return the counters of a process, None where it has ended or this is not Linux."""
    try:
        fields = (process / "stat").read_text().rpartition(") ")[2].split()
        status = (process / "status").read_text()
        major_faults, user, system = int(fields[9]), int(fields[11]) * TICK_S, int(fields[12]) * TICK_S
        swap = next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmSwap:")), 0)
    except (OSError, ValueError, IndexError):
        return None
    disk, read = _io(process)
    return _Reading(time.monotonic(), disk, read, major_faults, user, system, swap)


def _io(process: Path) -> tuple[int | None, int | None]:
    """Return bytes fetched from storage and bytes read; a kernel or a container may not show them."""
    try:
        lines = dict(line.split(": ") for line in (process / "io").read_text().splitlines())
        return int(lines["read_bytes"]), int(lines["rchar"])
    except (OSError, ValueError, KeyError):
        return None, None
