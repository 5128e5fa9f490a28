"""What can be read of the running process from outside the script's code."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import multiprocessing
import os
import signal
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from diagnose.errors import UsageError
from diagnose.model.launched import JOB_VARIABLES, launched

# Which rank this process is, and an id that all ranks of one run share.

STORE_KEY = "diagnose/run_id"


def rank_and_size() -> tuple[int, int]:
    """Return rank and number of ranks: torch.distributed's once it is up, what the launcher set before that."""
    distributed = process_group()
    if distributed is not None:
        return int(distributed.get_rank()), int(distributed.get_world_size())
    try:
        found = launched()
    except UsageError:
        return 0, 1
    return found.rank, found.world_size


def ranks_on_this_node(num_ranks: int) -> int:
    """Return how many of the ranks run on this machine: all of them, where no launcher states it."""
    try:
        found = launched()
    except UsageError:
        return num_ranks
    return found.on_this_node if found.world_size > 1 else num_ranks


def agree_on_run_id() -> str:
    """Return the same text in every rank of a run.

    The ranks' store takes the first proposal; it answers at once and waits for no other rank. Without it the
    launcher's variables must do.
    """
    distributed = process_group()
    if distributed is not None:
        try:
            store = distributed.distributed_c10d._get_default_store()
            return str(store.compare_set(STORE_KEY, "", uuid.uuid4().hex).decode())
        except (RuntimeError, ValueError, AttributeError):
            pass
    known = [os.environ.get(name, "") for name in JOB_VARIABLES]
    return hashlib.sha256("|".join(known).encode()).hexdigest()[:32] if any(known) else uuid.uuid4().hex


def process_group() -> Any:  # a module
    """Return torch.distributed if this process is in a group, None otherwise."""
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None


# Stop signals: SIGTERM and SIGHUP unwind the script, and none of them disturbs the writing of the capture.
#
# A signal that goes to the whole process group ends the script's worker processes too, and the script then often fails
# with an error about them: `stopped_by` is what really ended it.
#
# A thread that trains cannot end the program by raising. `stop_main` sends SIGTERM to the main thread instead.

UNWINDING = (signal.SIGTERM, signal.SIGHUP)
DEFERRED = (*UNWINDING, signal.SIGINT)

Handler: TypeAlias = Callable[[int, "FrameType | None"], None]


class Killed(BaseException):  # not an error of the script
    """Unwinds the script after SIGTERM or SIGHUP, so that what was captured is kept."""


class StopSignals:
    """The handlers of one run; a handler of the script's own has precedence while the script runs."""

    def __init__(self) -> None:
        self.is_asked = False  # by a thread that trains: the signal that unwinds the script is ours
        self.stopped_by = 0  # the signal that unwound the script
        self.deferred = 0  # the latest signal that came while the capture was written
        self._owner = os.getpid()
        self._ours = threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Unwind the script upon a signal that it leaves alone; on the way out put every handler back."""
        mine = [n for n in UNWINDING if self._ours and signal.getsignal(n) == signal.SIG_DFL]
        for number in mine:
            signal.signal(number, self._unwind)
        try:
            yield
        finally:
            for deferred, before in self._before.items():
                signal.signal(deferred, before)
            for number in mine:
                if signal.getsignal(number) == self._unwind:
                    signal.signal(number, signal.SIG_DFL)

    def stop_main(self) -> bool:
        """Unwind the script from a thread of its own; return False where it handles the signal itself, or has ended."""
        if os.getpid() != self._owner or signal.getsignal(signal.SIGTERM) != self._unwind:
            return False
        self.is_asked = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        return True

    def defer(self) -> None:
        """From here on only remember signals; the DataLoader's own handler would report workers that were ended."""
        if not self._ours or os.getpid() != self._owner:
            return
        while True:
            try:
                self._silence_children()
                for number in DEFERRED:
                    if signal.getsignal(number) not in (signal.SIG_IGN, None):
                        self._replace(number, self._remember)
            except Killed:  # tried until no handler raises
                self.deferred = self.stopped_by
            except KeyboardInterrupt:
                self.deferred = signal.SIGINT
            except Exception:  # a handler that was still in its place has raised
                continue
            else:
                return

    def _replace(self, number: int, handler: Handler) -> None:
        before = signal.getsignal(number)
        if before != handler:
            self._before.setdefault(number, before)
            signal.signal(number, handler)

    def _silence_children(self) -> None:
        """Let no handler of SIGCHLD raise: torch's does for each worker that a signal has ended."""
        if callable(signal.getsignal(signal.SIGCHLD)):
            self._replace(signal.SIGCHLD, _do_nothing)

    def _unwind(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() == self._owner:
            self.stopped_by = number
            self._silence_children()  # the iterators that unwinding removes end their workers
            raise Killed
        self._die(number)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            self._die(number)
        self.deferred = 0 if self.is_asked else number

    def _die(self, number: int) -> None:
        """End a forked child as the signal always did."""
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Stand for a handler; SIG_DFL would make the interpreter report a signal that has arrived already."""


# Ends every process of a run, also one that left its process group or whose parent has died.
#
# Each process of a run inherits an environment variable whose value names the run; /proc shows it. Without /proc no
# such process is found.

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
        time.sleep(0.02)


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
            if is_member and not any(name in word for word in _words(folder / "cmdline") for name in HELPERS):
                yield int(folder.name)


def _words(file: Path) -> list[bytes]:
    try:
        return file.read_bytes().split(b"\0") if file.stat().st_uid == os.getuid() else []
    except OSError:  # another user's, or gone
        return []


STDERR = 2


def compiled_graphs() -> int:
    """Return how many graphs torch.compile has made so far, or tried to make of a function that it skips."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return 0
    return int(utils.counters["stats"].get("unique_graphs", 0)) + int(utils.counters["frames"].get("total", 0))


class _Mallinfo(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def heap_mb() -> float | None:
    """Return how much is allocated by malloc, None where the allocator does not count it."""
    reader = _heap_reader()
    return reader() / 1e6 if reader is not None else None


@lru_cache(maxsize=1)
def _heap_reader() -> Callable[[], int] | None:
    """Return a reader of the allocated bytes, None where malloc is not glibc's: another one would leave it still."""
    libc = ctypes.CDLL(None)
    try:
        mallinfo, malloc, free = libc.mallinfo2, libc.malloc, libc.free
    except AttributeError:  # no glibc, or one before 2.33
        return None
    mallinfo.restype, malloc.restype = _Mallinfo, ctypes.c_void_p
    malloc.argtypes, free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]

    def allocated() -> int:
        info = mallinfo()
        return int(info.uordblks) + int(info.hblkhd)

    before = allocated()
    block = malloc(64_000)
    grown = allocated() - before
    free(block)
    return allocated if grown >= 32_000 else None


@contextlib.contextmanager
def silent_stderr() -> Iterator[None]:
    """Send what C++ code writes to standard error nowhere: for microseconds only, as all threads share it."""
    with contextlib.ExitStack() as opened:
        try:
            kept = os.dup(STDERR)
            opened.callback(os.close, kept)
            nowhere = opened.enter_context(Path(os.devnull).open("wb"))
        except OSError:  # standard error is closed, or no descriptor is left: nothing is silenced
            yield
            return
        os.dup2(nowhere.fileno(), STDERR)
        try:
            yield
        finally:
            os.dup2(kept, STDERR)


# Ends what a script that was stopped would leave behind: worker processes, and all others that it started.

RUN_VARIABLE = "DIAGNOSE_TRACE_RUN"  # in the environment of every process that a traced script starts
PID = struct.Struct("i")


class ForkedChildren:
    """Tracks the children made by os.fork: each writes its process id into a pipe as its first act."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        os.register_at_fork(after_in_child=self._report)

    def _report(self) -> None:
        with contextlib.suppress(OSError):  # the pipe is full or closed: then this child is not known
            os.write(self._write, PID.pack(os.getpid()))

    def end(self) -> None:
        """Terminate those that still run as our own children."""
        for pid in self._pids():
            if _parent(pid) == os.getpid():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)

    def close(self) -> None:
        """Close the pipe; the number must be forgotten first, since the next file opened will get it."""
        ends, self._read, self._write = (self._read, self._write), -1, -1
        for end in ends:
            with contextlib.suppress(OSError):
                os.close(end)

    def _pids(self) -> list[int]:
        data = b""
        with contextlib.suppress(OSError):
            while chunk := os.read(self._read, 4096):
                data += chunk
        return [pid for (pid,) in PID.iter_unpack(data[: len(data) // PID.size * PID.size])]


def end_workers() -> None:
    """Wait for multiprocessing's daemons, then terminate every process of it that still runs."""
    deadline = time.monotonic() + 5.0  # as long as torch gives its DataLoader workers
    for child in multiprocessing.active_children():
        if child.daemon:
            child.join(max(0.0, deadline - time.monotonic()))
        if child.is_alive():
            child.terminate()
            child.join(1.0)


def mark_run() -> str:
    """Mark this process's environment, unless the command that started it has just done so; return the mark.

    The mark of any other process above belongs to its own run.
    """
    if not os.environ.get(RUN_VARIABLE, "").startswith(f"{os.getppid()}-"):
        os.environ[RUN_VARIABLE] = new_mark()
    return os.environ[RUN_VARIABLE]


def new_mark() -> str:
    """Return a mark for what this process is about to start."""
    return f"{os.getpid()}-{uuid.uuid4().hex}"


def end_others(mark: str) -> None:
    """End whatever else the script has started, its children's children included."""
    end_marked(RUN_VARIABLE, mark, grace_s=5.0)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):  # gone already, or not Linux
        return -1
