"""Samples where a thread is, from a thread beside it: the innermost line of the user's code, and whether it ran.

It stands in for ExactSampler. Each row costs the observed thread one short hold of the interpreter's lock; the CPU time
of sampling is measured, bounded and reported.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType

from diagnose.capture.frames.reader import PACKAGES
from diagnose.capture.frames.stretch import BOOTSTRAP, shortened, state_in
from diagnose.capture.record.taken import OWN_THREADS, Taken

METHOD = "interpreter"
MAX_RUN_SAMPLES = 200_000  # an hour of a run that is watched to its end


class Sampler:
    """A thread of this process that samples another one into ``taken``; it has to hold the interpreter's lock to look.

    So it looks where the lock is given up: the time of a call that keeps it is seen at a later line. It stands in for
    ExactSampler where that cannot be had.
    """

    def __init__(self, taken: Taken) -> None:
        self.taken = taken
        self._enough = False
        self._switch_s = sys.getswitchinterval()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin an interval of sampling."""
        if self._thread is None:
            self._enough = False
            self.taken.method = METHOD
            if self.taken.depth == 1:
                self._switch_s = sys.getswitchinterval()
                _OF_FORKED.append(self._switch_s)
                # A thread that computes in Python gives the interpreter up after this long when another one wants it.
                # With Python's 5 ms the sampler would hardly ever look into short runs of Python, but into the call of
                # torch or NumPy that comes after it: with 0.2 ms still, where both take 0.3 ms (measured: 7 % of the
                # samples for 70 % of the time; with 20 µs 68 %). So short a wait has to end on time, or it ends with
                # that call. Where other threads compute in Python too they would take the interpreter from each other
                # as often. Outside of windows it stays as Python has it: a sampler that waits for long calls would
                # wake every 20 µs (measured: 9 to 29 samples instead of 160).
                sys.setswitchinterval(min(self._switch_s, 0.00002 if self._is_alone() else 0.0002))
            self._thread = threading.Thread(target=self._run, name=f"{OWN_THREADS}sampler", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the interval; does nothing where none is under way."""
        if self._thread is not None:
            self._enough = True
            self._thread.join()
            self._thread = None
            if self.taken.depth == 1:
                sys.setswitchinterval(self._switch_s)
                _OF_FORKED.clear()

    def _is_alone(self) -> bool:
        """Return whether the sampled thread is the only one, ours left out."""
        others = (thread for thread in threading.enumerate() if thread.ident != self.taken.thread_id)
        return all(thread.name.startswith(OWN_THREADS) for thread in others)

    def _run(self) -> None:
        taken, period = self.taken, self.taken.period_ms / 1e3
        # Let timed waits of this thread end when they should: Linux lets them last 50 µs longer.
        if sys.platform == "linux":
            import ctypes

            ctypes.CDLL(None).prctl(29, ctypes.c_ulong(1), 0, 0, 0)  # PR_SET_TIMERSLACK, ns; it may fail
        used = time.thread_time_ns()
        pause, num = period, 0
        taken.begin()
        with contextlib.ExitStack() as opened:
            state = -1  # no file: what the thread does is not known
            with contextlib.suppress(OSError):  # not Linux
                state = os.open(f"/proc/self/task/{taken.native_id}/stat", os.O_RDONLY)
                opened.callback(os.close, state)
            while not self._enough and len(taken.time_ns) < MAX_RUN_SAMPLES:
                time.sleep(pause)  # an Event would cost several times as much per round
                frame = sys._current_frames().get(taken.thread_id)
                if frame is None:
                    break
                taken.time_ns.append(time.time_ns())
                taken.place.append(self._row_of(frame))
                del frame
                taken.running.append(state_in(state))
                num += 1
                pause = max(period, (time.thread_time_ns() - used) / (1e9 * num * taken.max_share))
        taken.cost_ns += time.thread_time_ns() - used
        taken.end()

    def _row_of(self, frame: FrameType) -> int:
        """Return the row of the innermost user lines; of the innermost line at all where there is none."""
        found = [place_of(each) for each in islice(users_frames(frame), None if self.taken.depth > 1 else 1)]
        if len(found) > 1 and found[-1][0] == BOOTSTRAP:
            found.pop()
        return self.taken.row_of(shortened(found or [place_of(frame)], self.taken.depth))


_OF_FORKED: list[float] = []  # while a window is sampled: the switching that a forked process begins with


def _restore_in_forked() -> None:
    """Let processes that the script forks, such as a DataLoader's workers, have Python's own switching."""
    if _OF_FORKED:
        sys.setswitchinterval(_OF_FORKED[-1])


os.register_at_fork(after_in_child=_restore_in_forked)


def is_users(code: CodeType) -> bool:
    """Return whether code is the user's: neither of the standard library, nor of an installed package, nor of ours."""
    return is_users_file(code.co_filename)


@lru_cache(maxsize=4096)
def is_users_file(file: str) -> bool:
    """Return the same of the code's file."""
    return not file.startswith(LIBRARIES) and not any(folder in file for folder in PACKAGES)


def users_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of the user's code, innermost first."""
    while frame is not None:
        if is_users(frame.f_code):
            yield frame
        frame = frame.f_back


def place_of(frame: FrameType) -> tuple[str, int, str]:
    """Return file, line and function of a frame."""
    return frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name


# What the files of other people's code begin with.
LIBRARIES = (
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    f"{Path(__file__).resolve().parents[2]}/",
    *("<frozen ", "<__array", "<eval_with_key>"),
)
