"""How many cores this process may use: its affinity, the quotas of its control groups, and the ranks beside it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["cores_of_rank", "usable_cores"]

ROOT = Path("/")  # of the file system, for tests


def usable_cores() -> int:
    """Return the cores that the process can keep busy at once, at least 1; a quota of 2.5 cores counts as 2."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    return max(1, math.floor(min((cores, *_quotas()))))


def cores_of_rank(on_this_node: int) -> int:
    """Return the cores of one rank of several on this machine.

    A rank with fewer cores than the process that started it has been given them for itself; others share them.
    """
    return max(1, usable_cores() // (1 if _is_bound() else max(on_this_node, 1)))


def _is_bound() -> bool:
    with suppress(OSError, AttributeError):
        return os.sched_getaffinity(0) < os.sched_getaffinity(os.getppid())
    return False


def _quotas() -> Iterator[float]:
    """Yield the cores that each group around the process may use, in either version of the control groups."""
    for folder, inner in _groups():
        for group in (inner, *inner.parents):  # a quota of a group around it holds as well
            with suppress(OSError, ValueError, ZeroDivisionError):
                yield _quota(folder / group)


def _groups() -> Iterator[tuple[Path, Path]]:
    """Yield for each hierarchy with CPU quotas where it is mounted and the process's group in it."""
    with suppress(OSError, UnicodeDecodeError):
        for line in (ROOT / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, _, group = line.partition(":")
            controllers, _, path = group.partition(":")
            folders = {"": ("",), "cpu": ("cpu",)}.get(controllers, (controllers, "cpu"))
            if not controllers or "cpu" in controllers.split(","):
                yield from ((ROOT / "sys/fs/cgroup" / name, Path(path.lstrip("/"))) for name in folders)


def _quota(group: Path) -> float:
    """Return the cores that one group may use.

    Raises:
        OSError, ValueError: it has no quota.
    """
    combined = group / "cpu.max"
    if combined.exists():
        quota, period = combined.read_text(encoding="ascii").split()
    else:
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period"))
    if float(quota) <= 0:  # -1: none
        raise ValueError(quota)
    return float(quota) / float(period)
