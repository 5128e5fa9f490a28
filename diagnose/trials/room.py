"""How many processes of a script have room at once, by what the first two of them took."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from diagnose.trials.turns import LiveForm

USED_AT_MOST = 0.9  # of what is free: a change may take more than the script without it
CGROUP = Path("/sys/fs/cgroup")


def room_for(ready: Sequence[LiveForm], available: int | None) -> int:
    """Return how many further processes have room beside those that are ready, of which there are two or more.

    Args:
        ready: In the order in which they became ready: on a device each has less free memory than the one before.
        available: Bytes of the host that are free now, None if unknown.
    """
    most = sys.maxsize
    host = max(each.host_bytes() for each in ready)
    if available is not None and host > 0:
        most = int(USED_AT_MOST * available / host)
    free = [each.device_free for each in ready if each.device_free is not None]
    if len(free) >= 2 and free[-2] > free[-1]:
        most = min(most, int(USED_AT_MOST * free[-1] / (free[-2] - free[-1])))
    return max(most, 0)


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = CGROUP) -> int | None:
    """Return how much memory the host, or the container, has free; None where the system does not show it."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = meminfo.read_text(encoding="ascii").splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))
        found.append(limit - int((cgroup / "memory.current").read_text(encoding="ascii")))
    return min(found, default=None)
