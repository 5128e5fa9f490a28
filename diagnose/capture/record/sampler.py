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
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeAlias

from diagnose.capture.frames.reader import PACKAGES
from diagnose.capture.frames.stretch import BOOTSTRAP, shortened, state_in

OWN_THREADS = "diagnose-"


def schedstat(native_id: int) -> tuple[int, int | None]:
    """Return how long a thread has been on CPUs and how long it stood ready for one; 0 and None if not counted."""
    try:
        fields = Path(f"/proc/self/task/{native_id}/schedstat").read_text(encoding="ascii").split()
        return int(fields[0]), int(fields[1])
    except (OSError, IndexError, ValueError):  # no such file, or the thread has ended
        return 0, None


Lines: TypeAlias = tuple[tuple[str, int, str], ...]  # file, line, function; the innermost first


class Taken:
    """Samples of one thread, from stretches of watching it; ``rows`` has the layout of diagnose.model.capture.Samples.

    ``depth`` is how many lines of user code a row holds; with one, it is a window that is sampled. ``max_share`` is
    what sampling may take of a core.
    """

    def __init__(
        self,
        thread_id: int,
        native_id: int,
        period_ms: float,
        *,
        depth: int = 1,
        counts: Callable[[int], tuple[int, int | None]] = schedstat,
    ) -> None:
        self._schedstat = counts
        self.thread_id, self.native_id, self.depth = thread_id, native_id, depth
        self.period_ms = period_ms
        # A sample costs 0.05 ms, but 0.1 to 0.3 ms on virtual machines, where what samples wakes up with cold caches:
        # there samples come less often. A window lasts less than a second, and a place that a quarter of it goes to
        # needs some of them.
        self.max_share = 0.05 if depth == 1 else 0.0125
        self.places: dict[Lines, int] = {}
        self.time_ns: list[int] = []
        self.place: list[int] = []
        self.running: list[int] = []
        self.cost_ns = 0
        self.method, self.fallback = "", ""  # how frames were read last, and why not from memory
        self._watched_ns = 0
        self._ready_ns: int | None = 0  # runnable but not scheduled; None where that is not counted
        self._began: tuple[int, int | None] = (0, 0)

    def begin(self) -> None:
        """Begin a stretch."""
        self._began = time.perf_counter_ns(), self._schedstat(self.native_id)[1]

    def end(self) -> None:
        """End the stretch."""
        began_ns, ready_ns = self._began
        now_ns = self._schedstat(self.native_id)[1]
        self._watched_ns += time.perf_counter_ns() - began_ns
        known = None not in (self._ready_ns, ready_ns, now_ns)
        self._ready_ns = (self._ready_ns or 0) + (now_ns or 0) - (ready_ns or 0) if known else None

    def row_of(self, lines: Lines) -> int:
        """Return the row of a place."""
        return self.places.setdefault(lines, len(self.places))

    def rows(self) -> dict[str, object]:
        """Return the samples so far."""
        return {
            "places": [list(path[0]) for path in self.places],
            "time_ns": self.time_ns,
            "place": self.place,
            "running": self.running,
        }

    def paths(self) -> dict[str, object]:
        """Return the samples so far with the callers of each line, as the file of the steps has them."""
        num = len(self.place)  # a thread may be about to add one
        return {
            "paths": [[list(place) for place in path] for path in list(self.places)],
            "sampled_ns": self.time_ns[:num],
            "path": self.place[:num],
        }

    @property
    def lines(self) -> list[tuple[str, int]]:
        """Return the file and line of every place seen so far."""
        seen = (place for path in list(self.places) for place in path)
        return list(dict.fromkeys((file, line) for file, line, _ in seen))

    def summary(self) -> Mapping[str, object]:
        """Return the period, the number of samples and what they cost: CPU time of sampling over time watched.

        ``ready_share`` is the part of that time in which the thread could have run but had no core.
        """
        cost = self.cost_ns / self._watched_ns if self._watched_ns else 0.0
        return {
            "period_ms": self.period_ms,
            "num_samples": len(self.time_ns),
            "cost_share": round(cost, 5),
            "ready_share": None
            if self._ready_ns is None or not self._watched_ns
            else round(self._ready_ns / self._watched_ns, 5),
            "method": self.method or None,
            "fallback": self.fallback or None,
        }


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
