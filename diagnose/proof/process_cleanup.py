"""Ends what a trial has started, also where neither its parents nor its process group lead to it any more.

Every process of a run inherits an environment variable that names the run, so none is lost when its parent dies first.
The guard of a run ends what it can see; this is for what is left when the guard itself was killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

__all__ = ["VARIABLE", "end_all"]

VARIABLE = "DIAGNOSE_TRIAL"


def end_all(folder: Path) -> None:
    """Kill every process of the runs whose names lie in ``folder``, or of the run named so; needs /proc."""
    for pid in _members(str(folder)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _members(name: str) -> Iterator[int]:
    wanted = f"{VARIABLE}={name}".encode(errors="surrogateescape")
    with contextlib.suppress(OSError):  # no /proc: not Linux
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal() and int(folder.name) != os.getpid() and _carries(folder, wanted):
                yield int(folder.name)


def _carries(folder: Path, wanted: bytes) -> bool:
    try:
        if folder.stat().st_uid != os.getuid():
            return False
        variables = (folder / "environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone
        return False
    return any(value == wanted or value.startswith(wanted + b"/") for value in variables)
