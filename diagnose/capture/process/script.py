"""Runs a script or module in this process as ``python script.py`` or ``python -m module`` would."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import diagnose
from diagnose.capture.process.process import Killed, StopSignals
from diagnose.errors import UsageError
from diagnose.model.files import printable
from diagnose.text.plain_text import is_utf8

Ended: TypeAlias = Literal["stopped", "finished", "raised", "interrupted", "killed"]

BY_SIGNAL = 128  # a shell reports this plus the number of the signal
INTERRUPTED = BY_SIGNAL + signal.SIGINT

# What `python -c` runs first: the empty entry that it puts in front of sys.path stands for the working folder, which
# our own imports must not see. A file that is no archive holds the place, where run_script puts the script's folder.
NO_FOLDER_IN_FRONT = "import sys; sys.path[0] = sys.path[0] or sys.executable"
_OURS = (str(Path(__file__).parent), "<frozen runpy>", runpy.__file__)


def runs_main(module: str) -> str:
    """Return what ``python -c`` runs to call main() of a module of ours.

    Where this process found us in its working folder, as ``python -m diagnose`` does in a checkout, the new one would
    not: the folder is put last then.
    """
    root = str(Path(diagnose.__file__).parents[1])
    find = f"import importlib.util as u; u.find_spec('diagnose') or sys.path.append({root!r}); del u"
    return f"{NO_FOLDER_IN_FRONT}; {find}; from {module} import main; main()"


class StopScript(BaseException):  # not an error: everything was captured
    """Unwinds the script once everything is captured; not an Exception, so that scripts let it pass."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the script ended; ``error`` is what it raised, SystemExit included."""

    ended: Ended
    exit_code: int
    error: BaseException | None = None


def check_script(argv: Sequence[str], *, module: bool) -> None:
    """Refuse what Python could not even start.

    Raises:
        UsageError: no script was given, it does not exist, or its path is one that torch cannot record.
    """
    if not argv:
        raise UsageError("There is nothing to trace: name a script, such as train.py, or -m and a module.")
    if not module and not Path(argv[0]).exists():
        raise UsageError(f"There is no script {argv[0]} here ({Path.cwd()}); check the path.")
    check_utf8(Path.cwd() if module else Path(argv[0]).resolve())


def check_utf8(path: Path) -> None:
    """Refuse a path that torch's profiler cannot record or write to.

    Raises:
        UsageError: it is not UTF-8.
    """
    if not is_utf8(str(path)):
        raise UsageError(
            f"The path {printable(path)} is not UTF-8, and torch's profiler takes no other; rename the folder or file."
        )


def run_script(argv: Sequence[str], *, module: bool, signals: StopSignals | None = None) -> Outcome:
    """Run ``argv`` as the main program and return how it ended; a traceback is printed as Python prints it.

    With ``signals`` the caller has installed, stop signals are deferred from the script's end on.
    """
    if signals is None:
        signals = StopSignals()
        with signals.installed():
            return run_script(argv, module=module, signals=signals)
    with _main_program(argv, module=module):
        try:
            try:
                if module:
                    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(argv[0], run_name="__main__")
            finally:
                signals.defer()
        except StopScript as stop:
            signals.defer()  # once more: it may have been raised on behalf of a thread before this was done
            _release_frames(stop)
            return Outcome("stopped", 0)
        except BaseException as error:  # whatever the script raises is shown and passed on
            signals.defer()  # once more, for a handler that raised before this could be done
            return _failed(error, signals)
    return Outcome("finished", 0)


def stop_script(report: Callable[[str], None], signals: StopSignals | None = None) -> None:
    """Unwind the whole program; report and return where that is not possible, which is on a thread that trains.

    There the main thread has to be reached, through ``signals``.

    Raises:
        StopScript: on the main thread.
        SystemExit: on another one, whose end it is.
    """
    if threading.current_thread() is threading.main_thread():
        raise StopScript
    if signals is not None and signals.stop_main():
        raise SystemExit
    report("the script trains on a thread and cannot be stopped from there: it runs to its end")


def _failed(error: BaseException, signals: StopSignals) -> Outcome:
    """Return the outcome of a script that raised; after a signal its error is about what the signal ended."""
    if isinstance(error, Killed) or signals.stopped_by:
        _release_frames(error)
        if signals.is_asked:
            return Outcome("stopped", 0)
        return Outcome("killed", BY_SIGNAL + (signals.stopped_by or signal.SIGTERM))
    if isinstance(error, KeyboardInterrupt):
        _release_frames(error)
        return Outcome("interrupted", INTERRUPTED, error)
    if isinstance(error, SystemExit):
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
            return Outcome("finished", 1, error)
        return Outcome("finished", error.code or 0, error)
    traceback = error.__traceback__  # without the frames between the interpreter and the script
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_OURS):
        traceback = traceback.tb_next
    sys.excepthook(type(error), error, error.with_traceback(traceback).__traceback__)
    return Outcome("raised", 1, error)


@contextlib.contextmanager
def _main_program(argv: Sequence[str], *, module: bool) -> Iterator[None]:
    """Give the script its own sys.argv and sys.path[0], and put ours back."""
    old_argv, old_path = sys.argv, list(sys.path)
    sys.argv = list(argv)
    if not getattr(sys.flags, "safe_path", False):
        first = str(Path.cwd()) if module else str(Path(os.path.realpath(argv[0])).parent)
        sys.path[:1] = [first]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = old_argv, old_path


def _release_frames(error: BaseException) -> None:
    """Let go of the script's frames, so that what they hold (DataLoader iterators) is shut down now."""
    seen: BaseException | None = error
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__context__
