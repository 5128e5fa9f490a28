"""Ends what a script that was stopped would leave behind: worker processes, and all others that it started."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import struct
import time
import uuid
from pathlib import Path

from diagnose.capture.process.process_cleanup import end_marked

__all__ = ["RUN_VARIABLE", "ForkedChildren", "end_others", "end_workers", "mark_run", "new_mark"]

RUN_VARIABLE = "DIAGNOSE_TRACE_RUN"  # in the environment of every process that a traced script starts

GRACE = 5.0  # seconds that worker processes get to end by themselves, as long as torch gives its DataLoader workers
PID = struct.Struct("i")


class ForkedChildren:
    """Tracks the children made by os.fork: each writes its process id into a pipe as its first act."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        os.register_at_fork(after_in_child=self._report)

    def _report(self) -> None:
        with contextlib.suppress(OSError):  # the pipe is full or closed: then this child is not known
            os.write(self._write, PID.pack(os.getpid()))

    def end(self) -> None:
        """Terminate those that still run as our own children."""
        for pid in self._pids():
            if _parent(pid) == os.getpid():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)

    def close(self) -> None:
        """Close the pipe; the number must be forgotten first, since the next file opened will get it."""
        ends, self._read, self._write = (self._read, self._write), -1, -1
        for end in ends:
            with contextlib.suppress(OSError):
                os.close(end)

    def _pids(self) -> list[int]:
        data = b""
        with contextlib.suppress(OSError):
            while chunk := os.read(self._read, 4096):
                data += chunk
        return [pid for (pid,) in PID.iter_unpack(data[: len(data) // PID.size * PID.size])]


def end_workers() -> None:
    """Wait for multiprocessing's daemons, then terminate every process of it that still runs."""
    deadline = time.monotonic() + GRACE
    for child in multiprocessing.active_children():
        if child.daemon:
            child.join(max(0.0, deadline - time.monotonic()))
        if child.is_alive():
            child.terminate()
            child.join(1.0)


def mark_run() -> str:
    """Mark this process's environment, unless the command that started it has just done so; return the mark.

    The mark of any other process above belongs to its own run.
    """
    if not os.environ.get(RUN_VARIABLE, "").startswith(f"{os.getppid()}-"):
        os.environ[RUN_VARIABLE] = new_mark()
    return os.environ[RUN_VARIABLE]


def new_mark() -> str:
    """Return a mark for what this process is about to start."""
    return f"{os.getpid()}-{uuid.uuid4().hex}"


def end_others(mark: str) -> None:
    """End whatever else the script has started, its children's children included."""
    end_marked(RUN_VARIABLE, mark, grace_s=GRACE)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):  # gone already, or not Linux
        return -1
