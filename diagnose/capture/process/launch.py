"""Runs the traced script in a process of its own and waits for it.

The process apart is what lets a script be killed, call ``os._exit`` or hold every byte of GPU memory without taking the
diagnosis down with it; and the command itself never has to import torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import Pipe
from pathlib import Path
from types import FrameType
from typing import NoReturn

from diagnose.capture.options import CaptureOptions
from diagnose.capture.process.process import RUN_VARIABLE, STDERR, new_mark
from diagnose.capture.process.rank_processes import StoreLink
from diagnose.capture.process.script import runs_main
from diagnose.errors import DiagnoseError
from diagnose.text.progress import Progress

# The process that runs the traced script: started by ``diagnose trace``, it captures and does nothing else.
#
# ``sys.argv`` holds the request (see `CaptureRequest`) as JSON, then [-m] SCRIPT and its arguments.


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
    if result.threads:  # of the stopped script; they are not waited for
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(result.exit_code)
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


def _die_with_parent(parent: int) -> None:
    """Ask Linux to end this process when ``diagnose trace`` is killed: no training run is left without its owner."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)


FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

BOOTSTRAP = runs_main("diagnose.capture.process.launch")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the process runs, and with what; by default as this one does."""

    cwd: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # besides this process's
    before: Sequence[str] = ()  # a command that starts the words after it


@dataclass(frozen=True, slots=True)
class Ended:
    """How the child ended."""

    pid: int
    returncode: int  # negative: the signal that ended it
    failure: str  # the sentence of a DiagnoseError, or ""

    @property
    def exit_code(self) -> int:
        """Return the return code as a shell would show it: 128 and the number of the signal for a killed process."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode


def supervise(
    request: CaptureRequest,
    script: Sequence[str],
    *,
    stdout_to_stderr: bool,
    with_store: Callable[[StoreLink], None] | None = None,
    place: Place | None = None,
) -> Ended:
    """Run the script under capture on the caller's own terminal and wait for its end.

    ``with_store`` is called once the capture is written, if the script's ranks share a store, which it may use while it
    runs.
    """
    with tempfile.TemporaryFile() as failure, tempfile.TemporaryFile() as signals, contextlib.ExitStack() as sockets:
        files = (failure.fileno(), signals.fileno())
        request = replace(request, failure_file=files[0], signal_file=files[1])
        own, lent = map(sockets.enter_context, Pipe())
        request = replace(request, store_socket=lent.fileno())
        place = place or Place()
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
        command = [*place.before, sys.executable, *flags, "-c", BOOTSTRAP, request.encode(), *script]
        child = subprocess.Popen(
            command,
            stdout=STDERR if stdout_to_stderr else None,
            pass_fds=(*files, lent.fileno()),
            cwd=place.cwd,
            env={**os.environ, **place.environment, RUN_VARIABLE: new_mark()},  # marks all that the script starts
        )
        with _signals_to(child, files[1]):
            lent.close()
            while with_store is not None and not own.poll(0.5) and child.poll() is None:
                pass  # it may end without lending the store; what the script has started may hold the other end open
            if with_store is not None and own.poll() and (link := StoreLink(own)).accept():
                with_store(link)
            own.close()
            returncode = child.wait()
        failure.seek(0)
        return Ended(child.pid, returncode, failure.read().decode("utf-8", "replace"))


@contextmanager
def _signals_to(child: subprocess.Popen[bytes], log: int) -> Iterator[None]:
    """Pass signals on to the child that it has not received by itself.

    A terminal and a launcher signal the whole process group, others this process alone; a second KeyboardInterrupt
    would hit the script while it cleans up after the first.
    """
    known = 0

    def forward(number: int, _frame: FrameType | None) -> None:
        nonlocal known
        time.sleep(0.2)  # a signal to the group reaches both processes within this time
        news = os.pread(log, os.fstat(log).st_size, known)
        known += len(news)
        if number not in news:
            child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
