"""Time and memory of a fresh process."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cost", "installed_copy", "median", "run"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took."""

    wall_s: float
    cpu_s: float  # user and system, of the process and its children
    peak_mb: float  # resident memory at its largest


def run(command: Sequence[str | Path]) -> Cost:
    """Run a command, its output thrown away, in an empty folder: of the folder that it runs in Python imports first.

    Raises:
        RuntimeError: it failed; the message holds the end of what it wrote to standard error.
    """
    with tempfile.TemporaryDirectory() as empty:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=empty)
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{errors.decode(errors='replace')[-2000:]}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def median(costs: Sequence[Cost]) -> Cost:
    """Return the medians, each on its own."""
    return Cost(
        statistics.median(cost.wall_s for cost in costs),
        statistics.median(cost.cpu_s for cost in costs),
        statistics.median(cost.peak_mb for cost in costs),
    )


def installed_copy(folder: Path) -> Path:
    """Install this tree as it is into an environment of its own; return the environment's Python.

    An editable installation, as the developers' is, starts 10 ms later than what users have. The packages that it needs
    are those of the environment that this runs in. A PYTHONPATH, whose packages would come first, is taken out of the
    environment of this process and of those that it starts.
    """
    os.environ.pop("PYTHONPATH", None)
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (site / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    package = site / "diagnose"
    shutil.rmtree(package, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "diagnose", package, ignore=ignored)  # its links become folders
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(package)], check=True)
    return folder / "bin" / "python"
