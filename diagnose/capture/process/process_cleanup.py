"""Ends every process of a run, also one that left its process group or whose parent has died.

Each process of a run inherits an environment variable whose value names the run; /proc shows it. Without /proc no such
process is found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["end_marked", "kill_marked"]

MEMBER_POLL_S = 0.02
# They end by themselves once no process uses them any more, and remove what would otherwise be left in shared memory.
HELPERS = (b"multiprocessing.resource_tracker", b"torch_shm_manager")


def kill_marked(variable: str, folder: Path) -> None:
    """Kill every process but this one whose run is named by ``folder``, or by a path below it."""
    for pid in _members(variable, str(folder), or_below=True):
        _send(pid, signal.SIGKILL)


def end_marked(variable: str, value: str, *, grace_s: float) -> None:
    """End every process of the run but this one: SIGTERM first, SIGKILL for what still runs after ``grace_s``."""
    deadline = time.monotonic() + grace_s
    asked: set[int] = set()
    while members := set(_members(variable, value)):
        late = time.monotonic() > deadline
        for pid in members if late else members - asked:
            _send(pid, signal.SIGKILL if late else signal.SIGTERM)
        if time.monotonic() > deadline + grace_s:
            return  # not to be killed: it hangs in the kernel
        asked |= members
        time.sleep(MEMBER_POLL_S)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _members(variable: str, value: str, *, or_below: bool = False) -> Iterator[int]:
    """Yield the run's processes; the environment of one that has ended reads as empty."""
    wanted = f"{variable}={value}".encode(errors="surrogateescape")
    with contextlib.suppress(OSError):  # no /proc: not Linux
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal() or int(folder.name) == os.getpid():
                continue
            words = _words(folder / "environ")
            is_member = wanted in words or (or_below and any(word.startswith(wanted + b"/") for word in words))
            if is_member and not _is_helper(_words(folder / "cmdline")):
                yield int(folder.name)


def _is_helper(command: list[bytes]) -> bool:
    return any(name in word for word in command for name in HELPERS)


def _words(file: Path) -> list[bytes]:
    try:
        return file.read_bytes().split(b"\0") if file.stat().st_uid == os.getuid() else []
    except OSError:  # another user's, or gone
        return []
