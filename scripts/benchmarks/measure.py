"""Time and memory of a fresh process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cost", "compile_package", "median", "run"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took."""

    wall_s: float
    cpu_s: float  # user and system, of the process and its children
    peak_mb: float  # resident memory at its largest


def run(command: Sequence[str]) -> Cost:
    """Run a command, its output thrown away.

    Raises:
        RuntimeError: it failed; the message holds the end of what it wrote to standard error.
    """
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{errors.decode(errors='replace')[-2000:]}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def median(costs: Sequence[Cost]) -> Cost:
    """Return the medians, each on its own."""
    return Cost(
        statistics.median(cost.wall_s for cost in costs),
        statistics.median(cost.cpu_s for cost in costs),
        statistics.median(cost.peak_mb for cost in costs),
    )


def compile_package() -> None:
    """Leave diagnose byte-compiled, as pip leaves what it installs; otherwise each process compiles it again."""
    folders = [str(ROOT / name) for name in ("diagnose", "analyzers", "kernels", "reports")]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *folders], check=True)
