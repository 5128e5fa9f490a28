"""Commands that are given a time: what they start ends with them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from yardstick.answer import NoAnswerError

__all__ = ["MAX_SECONDS", "ended", "last_line"]

MAX_SECONDS = 900.0  # a machine that does something else at the same time takes several times as long


def ended(
    command: Sequence[str],
    folder: Path,
    seconds: float = MAX_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with one thread per process, and return what it printed.

    Raises:
        NoAnswerError: it took longer than it may.
    """
    given = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", **(environment or {})}
    started = subprocess.Popen(
        command,
        cwd=folder,
        env=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = started.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        for pid in (started.pid, *_descendants(started.pid)):
            _end(pid)
        started.communicate()
        raise NoAnswerError(f"more than {seconds:.0f} s") from None
    return subprocess.CompletedProcess(list(command), started.returncode, out, errors)


def _end(pid: int) -> None:
    """Kill a process with its group, and return when it has ended."""
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            os.killpg(os.getpgid(pid), signal.SIGKILL)
            select.select([process], [], [])
        finally:
            os.close(process)


def _descendants(pid: int) -> list[int]:
    """Return what a process started, and what that started: some are in sessions of their own."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                children.append(int(stat.parent.name))
    return [each for child in children for each in (child, *_descendants(child))]


def last_line(run: subprocess.CompletedProcess[str]) -> str:
    """Return why a command failed, in a line."""
    lines = run.stderr.strip().splitlines()
    return lines[-1][:200] if lines else f"exit {run.returncode}"
