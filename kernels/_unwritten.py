"""Files that a thread still writes, or could not write: a process that ends waits for them and reports what failed.

A process that loses a file must not end with exit code 0. An error at the end of a process, be it of `atexit` or of a
thread, does not change the exit code, and `os._exit` would skip what others do at the end. Python itself changes it to
120 if a standard stream cannot be flushed at last; so the last flush fails. An exit code of the program's own that is
not 0 stays.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
from concurrent.futures import Future
from multiprocessing import process
from pathlib import Path
from typing import IO, Any, NoReturn

__all__ = ["forget", "watch"]

_unwritten: dict[Future[Any], Path] = {}
_exit_codes: list[object] = []  # the one with which the program has ended


def watch(writing: Future[Any], path: Path) -> None:
    """Have the end of the process wait for a file, and report its error unless `forget` was called."""
    if sys.exit is not _exit:
        sys.exit = _exit
    _unwritten[writing] = path
    writing.add_done_callback(_forget_if_written)


def forget(writing: Future[Any]) -> None:
    """Leave a file to the caller, who was given its error."""
    _unwritten.pop(writing, None)


def _forget_if_written(writing: Future[Any]) -> None:
    if writing.exception() is None:
        forget(writing)


class _Exit(SystemExit):
    """What `sys.exit` raises: the interpreter reads its code when it ends the program, without a caller in Python."""

    @property
    def code(self) -> Any:  # type: ignore[override]  # as SystemExit has it
        code = vars(SystemExit)["code"].__get__(self)
        try:
            sys._getframe(1)
        except ValueError:
            _exit_codes.append(code)
        return code


def _exit(status: Any = None, /) -> NoReturn:  # as sys.exit has it
    """Exit the interpreter by raising SystemExit(status)."""
    raise _Exit(status)


class _FailsAtLast:
    """A stream whose last flush, by the interpreter that ends, fails."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:  # whatever a stream has
        return getattr(self._stream, name)

    def flush(self) -> None:
        self._stream.flush()
        if sys.is_finalizing():
            raise OSError("A file could not be written.")


def _report() -> None:
    """Wait for the files, print a sentence for each that could not be written, and let the process fail."""
    failed: list[BaseException] = []
    for writing, path in list(_unwritten.items()):
        error: BaseException | None
        try:
            error = writing.exception()
        except BaseException as interrupt:  # of the waiting, by the user
            error = interrupt
        if error is not None:
            failed.append(error)
            why = f"{type(error).__name__}: {error}".removesuffix(": ")
            print(f"BackgroundSaver could not write {path}: {why}", file=sys.stderr)
    _unwritten.clear()
    if not failed:
        return
    stream = sys.stderr or io.StringIO()
    stream.flush()
    if process.parent_process() is not None:  # of multiprocessing, which takes an error for its exit code
        raise failed[0]
    is_uncaught = getattr(sys, "last_value", None) is not None  # Python has printed it, and exits with 1
    if not is_uncaught and all(code in (None, 0) for code in _exit_codes[-1:]):
        sys.stderr = _FailsAtLast(stream)


os.register_at_fork(after_in_child=_unwritten.clear)  # the parent writes them
threading._register_atexit(_report)  # type: ignore[attr-defined]  # before what others do at exit with the files
atexit.register(_report)  # if an interrupt came in between
