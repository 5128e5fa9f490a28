"""What samples the training thread, densely in timing windows, else at a low rate, and notes its collections."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import platform
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import weakref
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from diagnose.capture.frames.layout import addresses
from diagnose.capture.frames.main import Message, receive, send
from diagnose.capture.frames.stretch import Order, Rows
from diagnose.capture.record.sampler import LIBRARIES, MAX_RUN_SAMPLES, Sampler, Taken, is_users_file

# Records when Python's garbage collector ran on the training thread.
#
# The profiler records collections only together with stacks, which slow the step down; this needs neither.

# Collections of the youngest objects take microseconds and are many: they are work like any other.


class GcWatch:
    """Keeps (begin, end) of collections on one thread, wall clock in unix ns, while it is started."""

    def __init__(self, thread_id: int, min_pause_ns: int) -> None:
        self._thread_id, self._min_pause_ns = thread_id, min_pause_ns
        self._began = 0
        self.runs: list[tuple[int, int]] = []

    def start(self) -> None:
        """Start recording."""
        gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Stop recording; no effect where it is not started."""
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)
        self._began = 0

    def _note(self, phase: str, _info: Mapping[str, int]) -> None:
        if threading.get_ident() != self._thread_id:
            return
        now = time.time_ns()
        if phase == "start":
            self._began = now
        elif self._began and now - self._began >= self._min_pause_ns and len(self.runs) < 50_000:
            self.runs.append((self._began, now))
            self._began = 0


# The process that samples this one from outside: started, asked and ended so that a script does not notice it.

CODE = (
    "import sys; sys.path.append(sys.argv[1]); from frames.main import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
SHELL = '"$@" </dev/null >/dev/null 2>&1 &'  # the shell ends at once, so that the process is no child of the script's
KEPT = ("LD_LIBRARY_PATH", "PATH")  # of the environment: our own mark would let the process be ended with the script's


class LostError(Exception):
    """The process cannot sample, and why."""


class SamplerProcess:
    """A process that reads the frames of this one; ``failure`` is why there is none."""

    def __init__(self) -> None:
        self.failure = _unfit()
        self._channel: socket.socket | None = None
        self._inode = self._pid = 0
        self._asking = self._attached = self._is_tracer = False

    def start(self) -> None:
        """Start it, without waiting until it is ready; no effect where it runs or failed."""
        if self._channel is not None or self.failure:
            return
        own, lent = socket.socketpair()
        try:
            folder, number = Path(__file__).resolve().parents[1], lent.fileno()
            python = [sys.executable, "-I", "-S", *(["-B"] if sys.dont_write_bytecode else [])]
            command = ["/bin/sh", "-c", SHELL, "sh", *python, "-c", CODE, str(folder), str(number), str(os.getpid())]
            kept = {name: os.environ[name] for name in KEPT if name in os.environ}
            shell = subprocess.Popen(command, pass_fds=(number,), start_new_session=True, env=kept)
            shell.wait()
        except OSError as error:
            own.close()
            self.failure = f"It could not be started: {error.strerror}."
            return
        finally:
            lent.close()
        own.settimeout(10.0)  # an answer takes a millisecond, the start of Python 50
        self._channel, self._inode = own, os.fstat(own.fileno()).st_ino
        _RUNNING.add(self)

    def attach(self, libraries: tuple[str, ...]) -> bool:
        """Return whether it sees a line of this thread that is known; ``libraries`` begin the files of no user code."""
        if self._attached or self.failure:
            return self._attached
        try:
            self.start()
            self._await_ready()
            seen = self._probe(libraries)
        except LostError:
            return False
        if seen[0] != "attached":
            self._fail(str(seen[1]))
        self._attached = not self.failure
        return self._attached

    def _await_ready(self) -> None:
        ready = self._receive()
        if ready[0] != "ready":
            raise self._fail(str(ready[1]))
        self._pid = int(ready[1])

    def _probe(self, libraries: tuple[str, ...]) -> Message:
        """Ask what it sees of this thread, which waits for the answer meanwhile."""
        code = _await_answer.__code__
        known = code.co_filename, max(line for *_, line in code.co_lines() if line is not None), code.co_name
        question = ("attach", tuple(addresses()), libraries, threading.get_ident(), known)
        seen = self.ask(*question)
        if seen == ("failed", os.strerror(errno.EPERM)):
            self._is_tracer = True
            _allow(self._pid)
            seen = self.ask(*question)
        return seen

    def ask(self, *message: object) -> Message:
        """Return the answer to a message.

        Raises:
            LostError: there is none. None will be asked for again.
        """
        if self.failure:
            raise LostError(self.failure)
        channel = self._own_channel()
        if self._asking:  # an exception, such as KeyboardInterrupt, came before the answer
            raise self._fail("It was interrupted.")
        self._asking = True
        try:
            send(channel, message)
            _await_answer(channel)
        except OSError as error:
            raise self._fail(f"It does not answer: {error}.") from error
        answer = self._receive()
        self._asking = False
        return answer

    def close(self) -> None:
        """End it."""
        if self._channel is None:
            return
        if not self._is_open():  # the number belongs to a file of the script's by now
            self._channel.detach()
        self._channel.close()
        self._channel, self._attached = None, False
        self.failure = self.failure or "It was ended."
        if self._is_tracer:
            _allow(0)

    def forget(self) -> None:
        """Leave it to the process that this one was forked from."""
        self.close()
        self.failure = "It samples another process."

    def _own_channel(self) -> socket.socket:
        if self._channel is None or not self._is_open():
            raise self._fail("The script closed its socket.")
        return self._channel

    def _is_open(self) -> bool:
        """Return whether the socket's number is still the socket's: a script may close all files that it finds open."""
        try:
            return self._channel is not None and os.fstat(self._channel.fileno()).st_ino == self._inode
        except OSError:
            return False

    def _receive(self) -> Message:
        try:
            answer = receive(self._own_channel())
        except OSError as error:
            raise self._fail(f"It does not answer: {error}.") from error
        if answer is None:
            raise self._fail("It has ended.")
        return answer

    def _fail(self, reason: str) -> LostError:
        """End it for good, and return what is to be raised."""
        self.failure = reason
        self.close()
        return LostError(reason)


def _await_answer(channel: socket.socket) -> None:
    channel.recv(1, socket.MSG_PEEK)


def _unfit() -> str:
    """Return why there can be no such process on this system, "" where there can."""
    if sys.platform != "linux":
        return "Memory of processes is read on Linux only."
    is_known = platform.python_implementation() == "CPython" and sys.version_info >= (3, 11)
    if not is_known or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "This interpreter's frames are not known."
    if not sys.executable or not Path(__file__).exists():
        return "There is no Python to run it, or diagnose is in an archive."
    return ""


def _allow(pid: int) -> None:
    """Let a process read this one's memory; none with 0."""
    with contextlib.suppress(AttributeError, OSError):
        # PR_SET_PTRACER: who may read this process's memory where that is restricted (Yama).
        ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(pid), 0, 0, 0)


_RUNNING: weakref.WeakSet[SamplerProcess] = weakref.WeakSet()


def _forget_in_forked() -> None:
    for process in list(_RUNNING):
        process.forget()
    _RUNNING.clear()


os.register_at_fork(after_in_child=_forget_in_forked)


# Samples a thread from outside, by the process that reads its frames in memory, into what was taken so far.
#
# The thread is seen at what it executes, also inside a call of C that keeps the interpreter's lock, and is not held
# up.

METHOD = "memory"
SHIM = "<shim>"  # the file of frames in which C calls into Python


class ExactSampler:
    """Samples into ``taken``; where the process fails, from a thread beside the sampled one."""

    def __init__(self, process: SamplerProcess, taken: Taken) -> None:
        self._process, self.taken = process, taken
        self._beside = Sampler(taken)
        self._runs = False
        self._places: list[int] = []  # of the stretch: their rows

    def start(self) -> bool:
        """Begin a stretch; return whether the process samples it."""
        if not self._runs and self._left > 0:
            self._runs = self._begins()
            if not self._runs:
                self._beside.start()
        return self._runs

    def _begins(self) -> bool:
        taken = self.taken
        if not self._process.attach((*LIBRARIES, SHIM)):
            taken.fallback = self._process.failure
            return False
        order = Order(
            ident=taken.thread_id,
            native_id=taken.native_id,
            period_ns=int(taken.period_ms * 1e6),
            depth=taken.depth,
            max_share=taken.max_share,
            max_samples=self._left,
        )
        try:
            answer = self._process.ask("begin", *order)
        except LostError as error:
            answer = ("failed", str(error))
        if answer[0] == "failed":
            taken.fallback = str(answer[1])
            return False
        taken.method = METHOD
        self._places.clear()
        taken.begin()
        return True

    def stop(self) -> None:
        """End the stretch; does nothing where none is under way."""
        self._beside.stop()
        if self._runs:
            self._add("end")
            self._runs = False
            self.taken.end()

    def collect(self) -> Taken:
        """Fetch and return what was sampled so far."""
        if self._runs:
            self._add("take")
        return self.taken

    @property
    def _left(self) -> int:
        return MAX_RUN_SAMPLES - len(self.taken.time_ns)

    def _add(self, question: str) -> None:
        try:
            kind, *rest = self._process.ask(question)
        except LostError as error:
            self.taken.fallback = str(error)
            return
        if kind != "rows":
            return
        rows, taken = Rows(*rest), self.taken
        self._places += [taken.row_of(place) for place in rows.places]
        taken.time_ns += array("q", rows.time_ns)
        taken.place += [self._places[row] for row in array("i", rows.place)]
        taken.running += array("b", rows.running)
        taken.cost_ns += rows.cost_ns


class Samplers:
    """The samplers of the thread that makes the steps, and before the first one of that which imports torch.

    The watch of its collector belongs to them.

    ``period_ms`` is that of the timing windows.
    """

    def __init__(self, period_ms: float = 5.0, *, max_share: float | None = None, min_pause_ns: int = 100_000) -> None:
        self._in_windows: ExactSampler | None = None
        self._of_run: ExactSampler | None = None  # while no window is open
        self._gc_watch: GcWatch | None = None
        self._period_ms, self._max_share, self._min_pause_ns = period_ms, max_share, min_pause_ns
        self._process = SamplerProcess()

    def prepare(self) -> None:
        """Start the process that samples, before the script could notice that there is another one."""
        self._process.start()

    def sample_window(self, *, on: bool) -> None:
        """Sample a timing window from now on, or no longer."""
        if self._in_windows is None:
            self._in_windows = self._watch(self._period_ms, 1)
        if on:  # one after the other: each leaves the interpreter's switching as it found it
            self.sample_run(on=False)
            self._in_windows.start()
        else:
            self._in_windows.stop()
            self.sample_run(on=True)

    def sample_run(self, *, on: bool) -> None:
        """Sample what the thread does where no timing window is open, from now on or no longer."""
        if self._of_run is None or self._of_run.taken.thread_id != threading.get_ident():
            for watch in (self._of_run, self._gc_watch):  # of the thread that imported torch, which makes no steps
                if watch is not None:
                    watch.stop()
            # A long step of a tenth of a second still has five samples, for 1 % of a core.
            self._of_run = self._watch(20.0, 6)
            self._gc_watch = GcWatch(threading.get_ident(), self._min_pause_ns)
            self._gc_watch.start()  # to the end: how often it runs is known from all steps, not from a dozen
        if on:
            self._of_run.start()
        else:
            self._of_run.stop()

    def _watch(self, period_ms: float, depth: int) -> ExactSampler:
        taken = Taken(threading.get_ident(), threading.get_native_id(), period_ms, depth=depth)
        taken.max_share = self._max_share or taken.max_share
        return ExactSampler(self._process, taken)

    def stop(self) -> None:
        """End the threads and the process."""
        for watch in (self._in_windows, self._of_run, self._gc_watch):
            if watch is not None:
                watch.stop()
        self._process.close()

    @property
    def in_windows(self) -> Taken | None:
        """Return what was sampled in timing windows, None before the first one."""
        return self._in_windows.collect() if self._in_windows is not None else None

    @property
    def of_run(self) -> Taken | None:
        """Return what was sampled between them."""
        return self._of_run.collect() if self._of_run is not None else None

    def hot_lines(self) -> list[tuple[str, int]]:
        """Return the user's lines that the thread was at most often, in timing windows and between them."""
        seen = Counter[tuple[str, int]]()
        for taken in filter(None, (self.in_windows, self.of_run)):
            places = [path[0][:2] for path in list(taken.places)]
            seen.update(places[row] for row in taken.place if row < len(places))
        least = 0.02 * seen.total()  # of the samples, at a line
        return [at for at, num in seen.most_common(16) if num >= least and is_users_file(at[0])]

    @property
    def gc_runs(self) -> Sequence[object]:
        """Return the collector's runs, recorded or not."""
        return self._gc_watch.runs if self._gc_watch is not None else ()

    @property
    def summary(self) -> Mapping[str, object]:
        """Return what CaptureInfo.sampler holds."""
        return self._in_windows.taken.summary() if self._in_windows is not None else {}

    def run_paths(self) -> Mapping[str, object]:
        """Return the samples between the windows, as the file of the steps holds them."""
        return self._of_run.collect().paths() if self._of_run is not None else {}
