"""The temporary folder of one ``diagnose prove``, and the process of a run, started under its guard.

A live ``prove`` holds a lock on a file in its folder. The kernel releases it however the process ends, so a folder with
our marker whose lock can be had belongs to nobody: it is removed at the next start, and its processes are ended.
SIGTERM and SIGHUP end ``prove`` as Ctrl-C does: the folder is removed on the way out.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import diagnose
from diagnose.capture.process.process import kill_marked
from diagnose.capture.process.script import runs_main
from diagnose.changes import any_compiles
from diagnose.errors import OutputError
from diagnose.text.plain_text import clean
from diagnose.trials.copying import remove_tree
from diagnose.trials.guard import BOOTSTRAP as GUARD
from diagnose.trials.measuring import TrialRequest, TrialResult

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


CHILD = "diagnose.trials.child"
BOOTSTRAP = runs_main(CHILD)
SETTINGS = {"PYTHONHASHSEED": "0"}  # what the user has set himself stays
TIMEOUT_FACTOR, MIN_TIMEOUT_S, COMPILING_SHARE = 6.0, 60.0, 2 / 3


@dataclass(frozen=True)
class Launch:
    """Where and how the process of a run starts, and what its guard keeps it from."""

    script: Sequence[str]  # [-m] SCRIPT and its arguments
    cwd: Path
    name: Path  # in the environment of every process of the run, by which those that are left are found
    settings: Mapping[str, str] = field(default_factory=dict)  # of its environment
    launcher: Sequence[str] = ()
    writable: Sequence[str] | None = None  # None: wherever the user may write
    hosts: Path | None = None  # stands for /etc/hosts of a run without a network; None: it has one
    remove: Path | None = None  # a folder that the guard removes if this process is gone
    grace_s: float = 0.2  # between asking the run to end and ending it

    def start(self, folder: Path, order: TrialRequest) -> tuple[subprocess.Popen[bytes], int]:
        """Start the guard; return it and the end of the pipe that keeps it waiting: what closes it ends the run."""
        order.write(folder / "order.json")
        starts = [*self.launcher, "-m", CHILD] if self.launcher else [sys.executable, "-c", BOOTSTRAP]
        waiting, pipe = os.pipe()
        guarded = {
            "pipe": waiting,
            "grace_s": self.grace_s,
            "command": [*starts, str(folder / "order.json"), *self.script],
            "environment": {"PYTHONUNBUFFERED": "1", **self.settings, VARIABLE: str(self.name)},
            "remove": str(self.remove or ""),
            "writable": None if self.writable is None else list(self.writable),
            "hosts": None if self.hosts is None else str(self.hosts),
        }
        root = str(Path(diagnose.__file__).parents[1])
        try:
            (folder / "guard.json").write_text(json.dumps(guarded), encoding="utf-8")
            with (folder / "output.log").open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", GUARD, root, str(folder / "guard.json")],
                    cwd=self.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**SETTINGS, **os.environ},
                    pass_fds=(waiting,),
                )
        except BaseException:
            os.close(pipe)
            raise
        finally:
            os.close(waiting)
        return process, pipe


def patience_s(ids: Sequence[str], longest_s: float, left_s: float) -> float:
    """Return how long a process with some changes may take: compiling takes long, hanging takes for ever.

    Args:
        ids: The changes.
        longest_s: What those without a change took, 0 for the first one.
        left_s: What is left of the budget. The first process that compiles starts with an empty cache.
    """
    share = 1.0 if not longest_s else COMPILING_SHARE if any_compiles(ids) else 0.0
    return max(MIN_TIMEOUT_S, TIMEOUT_FACTOR * longest_s, share * left_s)


def tail(log: Path, num_bytes: int) -> bytes:
    """Return the end of a file."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - num_bytes))
        return file.read()


def last_line(folder: Path) -> str:
    """Return the last line that a run has printed as a part of a sentence, "" where there is none."""
    lines = tail(folder / "output.log", 20_000).decode("utf-8", "replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f" (its last line: {clean(last)[:160]})" if last else ""


def read_result(folder: Path, code: int | None, timeout_s: float, last: str) -> TrialResult:
    """Return what the run left; what cannot be read, whatever the script did to it, is a failed run."""
    if code is None:
        return TrialResult(failure=f"It had not ended after {timeout_s:.0f} s and was killed{last}.")
    path = folder / "result.json"
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
        if found.st_size > (64 << 20):  # some thousand steps are below a megabyte
            raise ValueError(f"it has {found.st_size / 1e6:.0f} MB")
        return TrialResult.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        why = f"It ended with exit code {code} before anything was measured{last}."
    except (OSError, ValueError, TypeError, RecursionError) as error:
        why = f"It ended with exit code {code} and left a result that cannot be used: {clean(str(error))[:160]}{last}."
    return TrialResult(failure=why)
