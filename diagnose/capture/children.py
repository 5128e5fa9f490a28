"""Ends what a deliberately stopped script would leave behind: worker processes and forked children."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import struct
import time
from pathlib import Path

__all__ = ["ForkedChildren", "end_workers"]

GRACE = 5.0  # seconds that worker processes get to end by themselves, as long as torch gives its DataLoader workers
PID = struct.Struct("i")


class ForkedChildren:
    """Knows the children made by os.fork: each writes its process id into a pipe as its first act."""

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


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):  # gone already, or not Linux
        return -1
