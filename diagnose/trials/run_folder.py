"""The temporary folder of one ``diagnose prove``, and what is left of those that were killed.

A live ``prove`` holds a lock on a file in its folder. The kernel releases it however the process ends, so a folder with
our marker whose lock can be had belongs to nobody: it is removed at the next start, and its processes are ended.
SIGTERM and SIGHUP end ``prove`` as Ctrl-C does: the folder is removed on the way out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diagnose.capture.process.process import kill_marked
from diagnose.errors import OutputError
from diagnose.trials.copying import remove_tree

PREFIX = "diagnose-prove-"
VARIABLE = "DIAGNOSE_TRIAL"  # in the environment of every process of a run: the run's folder
LOCK, MARKER = "prove.lock", b"diagnose prove holds a lock on this file while it runs\n"


@contextmanager
def run_folder() -> Iterator[Path]:
    """Make a temporary folder that is gone after the block, with every process that was started for it.

    Raises:
        OutputError: there is no place for temporary files.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: then the marker is not written, and nobody
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # takes the folder for a leftover
            os.write(descriptor, MARKER)
        lock = descriptor
    except OSError as error:
        raise OutputError(
            f"No temporary folder can be made: {error.strerror}. Free some space or set TMPDIR to another disk."
        ) from error
    try:
        yield folder
    finally:
        kill_marked(VARIABLE, folder)
        remove_tree(folder)
        os.close(lock)


def remove_leftovers() -> int:
    """Remove the folders of runs that are gone, end their processes, and return how many there were."""
    num_removed = 0
    for folder in Path(tempfile.gettempdir()).resolve().glob(f"{PREFIX}*"):
        lock = _lock_of_the_dead(folder)
        if lock is not None:
            kill_marked(VARIABLE, folder)
            remove_tree(folder)
            os.close(lock)
            num_removed += 1
    return num_removed


def _lock_of_the_dead(folder: Path) -> int | None:
    """Return the lock, now ours, of a folder that is our user's, carries the marker and has no owner any more."""
    descriptor = -1
    with contextlib.suppress(OSError):
        if not _is_own(folder.lstat(), stat.S_IFDIR):
            return None
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if _is_own(os.fstat(descriptor), stat.S_IFREG):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.pread(descriptor, len(MARKER) + 1, 0) == MARKER:
                return descriptor
    if descriptor >= 0:
        os.close(descriptor)
    return None


def _is_own(found: os.stat_result, kind: int) -> bool:
    return stat.S_IFMT(found.st_mode) == kind and found.st_uid == os.getuid()


NUMBERS = (signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(BaseException):  # not an error: no handler of errors may keep it
    """Unwinds the command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number  # as a shell shows it


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise `EndedBySignal` in the block at the first signal; what is ignored, as under nohup, stays so."""
    if threading.current_thread() is not threading.main_thread():  # only there can handlers be set
        yield
        return
    before = {number: signal.getsignal(number) for number in NUMBERS}

    def end(number: int, _frame: object) -> None:
        for other in NUMBERS:  # a second one must not interrupt the cleaning up
            signal.signal(other, signal.SIG_IGN)
        raise EndedBySignal(number)

    for number in NUMBERS:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
