"""Ends what a trial has started, also what has left its process group, as torchrun's ranks do.

Every process of a run inherits an environment variable that names the run, so none is lost when its parent dies first.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

__all__ = ["VARIABLE", "end_all"]

VARIABLE = "DIAGNOSE_TRIAL"


def end_all(group: int, name: str, number: signal.Signals) -> None:
    """Send a signal to the process group and to every process of the run, wherever it is now; needs /proc for that."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
    for pid in _members(name):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _members(name: str) -> Iterator[int]:
    wanted = f"{VARIABLE}={name}".encode()
    with contextlib.suppress(OSError):  # no /proc: not Linux
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal() and wanted in _environment(folder) and int(folder.name) != os.getpid():
                yield int(folder.name)


def _environment(folder: Path) -> list[bytes]:
    try:
        return (folder / "environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone
        return []
