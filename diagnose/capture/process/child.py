"""The process that runs the traced script: started by ``diagnose trace``, it captures and does nothing else.

``sys.argv`` holds the request (see `CaptureRequest`) as JSON, then [-m] SCRIPT and its arguments.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from diagnose.capture.options import CaptureOptions
from diagnose.errors import DiagnoseError
from diagnose.text.progress import Progress

__all__ = ["CaptureRequest", "main", "skip_collections"]

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """The settings that the parent passes to the child."""

    options: CaptureOptions
    parent: int  # id of the process that waits for this one
    failure_file: int  # open file that takes the text of a DiagnoseError: the parent prints it, once
    signal_file: int  # open file that takes the number of each signal that arrived here, one byte each
    store_socket: int = -1  # open socket over which the ranks' store is lent; -1: nobody wants it

    def encode(self) -> str:
        """Return the request as one argument."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def decode(cls, text: str) -> CaptureRequest:
        """Read what ``encode`` wrote."""
        values = json.loads(text)
        options = CaptureOptions(**{**values["options"], "output": Path(values["options"]["output"])})
        return cls(**{**values, "options": options})


def main() -> NoReturn:
    """Run the script under capture and end as it ended."""
    request = CaptureRequest.decode(sys.argv[1])
    _die_with_parent(request.parent)
    os.set_blocking(request.signal_file, False)
    signal.set_wakeup_fd(request.signal_file, warn_on_full_buffer=False)  # leaves the script's handlers alone
    module = sys.argv[2] == "-m"
    script = sys.argv[3:] if module else sys.argv[2:]
    from diagnose.capture import trace_script

    try:
        result = trace_script(script, request.options, module=module, progress=Progress(quiet=request.options.quiet))
    except DiagnoseError as error:
        os.write(request.failure_file, str(error).encode("utf-8", "replace"))
        sys.exit(error.exit_code)
    if request.store_socket >= 0 and result.store is not None:
        from diagnose.capture.process.rank_processes import serve_store

        serve_store(result.store, request.store_socket, result.folder, result.info.run_id)
    if result.threads:
        _leave_at_once(result.exit_code)
    if result.info.ended == "stopped":
        skip_collections()
    sys.exit(result.exit_code)


def skip_collections() -> None:
    """Let the interpreter end without going through all objects again, which takes a second where torch is loaded.

    Objects that only cycles hold are not finalized then, so files are flushed first.
    """
    are_files: dict[type, bool] = {}  # asking each of a million objects takes 0.3 s
    for each in gc.get_objects():
        kind = type(each)
        if (is_file := are_files.get(kind)) is None:
            is_file = are_files[kind] = issubclass(kind, io.IOBase)
        if is_file:
            with contextlib.suppress(Exception):  # closed, broken, or a class of the script's own
                each.flush()
    gc.freeze()


def _leave_at_once(code: int) -> NoReturn:
    """Leave without waiting for threads that the stopped script has left running."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _die_with_parent(parent: int) -> None:
    """Ask Linux to end this process when ``diagnose trace`` is killed: no training run is left without its owner."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)
