"""Runs a script or module in this process as ``python script.py`` or ``python -m module`` would."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Literal, TypeAlias

from diagnose.errors import UsageError

__all__ = ["Ended", "Killed", "Outcome", "StopScript", "check_script", "run_script"]

Ended: TypeAlias = Literal["stopped", "finished", "raised", "interrupted", "killed"]

INTERRUPTED = 128 + signal.SIGINT  # the exit codes that a shell reports for these signals
TERMINATED = 128 + signal.SIGTERM

_OWN_FOLDER = str(Path(__file__).parent)


class StopScript(BaseException):  # not an error: everything was captured
    """Unwinds the script once everything is captured; not an Exception, so that scripts let it pass."""


class Killed(BaseException):  # not an error of the script
    """Unwinds the script after SIGTERM, so that what was captured is kept."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the script ended; ``error`` is what it raised, SystemExit included."""

    ended: Ended
    exit_code: int
    error: BaseException | None = None


def check_script(argv: Sequence[str], *, module: bool) -> None:
    """Refuse what Python could not even start.

    Raises:
        UsageError: no script was given or it does not exist.
    """
    if not argv:
        raise UsageError("There is nothing to trace: name a script, such as train.py, or -m and a module.")
    if not module and not Path(argv[0]).exists():
        raise UsageError(f"There is no script {argv[0]} here ({Path.cwd()}); check the path.")


def run_script(argv: Sequence[str], *, module: bool) -> Outcome:
    """Run ``argv`` as the main program and say how it ended; a traceback is printed as Python prints it."""
    with _main_program(argv, module=module), _sigterm_raises():
        try:
            if module:
                runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(argv[0], run_name="__main__")
        except StopScript as stop:
            _release_frames(stop)
            return Outcome("stopped", 0)
        except Killed as killed:
            _release_frames(killed)
            return Outcome("killed", TERMINATED)
        except KeyboardInterrupt as error:
            _release_frames(error)
            return Outcome("interrupted", INTERRUPTED, error)
        except SystemExit as error:
            return Outcome("finished", _exit_code(error), error)
        except BaseException as error:  # whatever the script raises is shown and passed on
            _show(error)
            return Outcome("raised", 1, error)
    return Outcome("finished", 0)


@contextlib.contextmanager
def _main_program(argv: Sequence[str], *, module: bool) -> Iterator[None]:
    """Give the script its own sys.argv and sys.path[0], and put ours back."""
    old_argv, old_path = sys.argv, list(sys.path)
    sys.argv = list(argv)
    if not getattr(sys.flags, "safe_path", False):
        first = str(Path.cwd()) if module else os.path.dirname(os.path.realpath(argv[0]))  # noqa: PTH120
        sys.path[:1] = [first]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = old_argv, old_path


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Turn SIGTERM into Killed where the script leaves it alone."""
    owner = os.getpid()

    def handler(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the signature of a handler
        if os.getpid() == owner:
            raise Killed
        signal.signal(number, signal.SIG_DFL)  # a forked child dies as it always did
        os.kill(os.getpid(), number)

    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if not ours:
        yield
        return
    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_code(error: SystemExit) -> int:
    """Return the exit code as the interpreter computes it, and print a message given instead of one."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    print(error.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """Print the traceback without the frames between the interpreter and the script."""
    sys.excepthook(type(error), error, error.with_traceback(_script_part(error.__traceback__)).__traceback__)


def _script_part(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the script's first frame on."""
    while traceback is not None and _is_ours(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    return traceback


def _is_ours(filename: str) -> bool:
    return filename.startswith((_OWN_FOLDER, "<frozen runpy>")) or filename == runpy.__file__


def _release_frames(error: BaseException) -> None:
    """Let go of the script's frames, so that what they hold (DataLoader iterators) is shut down now."""
    seen: BaseException | None = error
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__context__
