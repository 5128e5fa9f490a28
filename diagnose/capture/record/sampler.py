"""Samples where a thread is: the innermost line of the user's code, and whether the thread ran or waited.

The profiler gives a function's first line only; this gives the line that was executing. Each row costs the
observed thread one short hold of the interpreter's lock; the CPU time of sampling is measured, bounded and reported.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeAlias

from diagnose.capture.record.other_threads import OWN_THREADS, OtherThreads, cpu_ns

__all__ = ["Sampler", "is_users"]

_Lines: TypeAlias = tuple[tuple[str, int, str], ...]  # file, line, function; the innermost first

# Of the time since the last sample, what must be CPU time to count as running: where no state is known; and where one
# could be, but reading it would hold up a thread that computes in Python once more.
RUNNING_SHARE, BUSY_SHARE = 0.5, 0.95
UNKNOWN = -1
# A thread that computes in Python gives the interpreter up after this long when another one wants it. With Python's
# 5 ms the sampler would hardly ever look into short runs of Python, but into the call of torch or NumPy that comes
# after it: with 0.2 ms still, where both take 0.3 ms (measured: 7 % of the samples for 70 % of the time; with 20 µs
# 68 %). So short a wait has to end on time, or it ends with that call. Where other threads compute in Python too they
# would take the interpreter from each other as often. Outside of windows it stays as Python has it: a sampler that
# waits for long calls which keep the interpreter would wake every 20 µs (measured: 9 to 29 samples instead of 160).
SWITCH_S, SHARED_SWITCH_S = 0.00002, 0.0002
PR_SET_TIMERSLACK = 29  # linux/prctl.h; in ns, of the calling thread alone
MAX_SAMPLES = 200_000  # an hour of a run that is watched to its end
# Of a core: where waking a thread is dear, as on virtual machines (0.2 ms a sample), samples come less often. A window
# lasts less than a second, and a place that a quarter of it goes to needs some samples.
MAX_CPU_SHARE, MAX_WINDOW_CPU_SHARE = 0.0125, 0.03


class Sampler:
    """A thread that samples another one; ``rows`` has the file's layout of diagnose.model.capture.Samples."""

    def __init__(self, thread_id: int, native_id: int, period_ms: float, *, depth: int = 1) -> None:
        """``depth`` is how many lines of user code a row holds; with one, it is a window that is sampled."""
        self._thread_id = thread_id
        self._period = period_ms / 1e3
        self._native_id = native_id
        self._user_code: dict[CodeType, bool] = {}
        self._depth = depth
        self._places: dict[_Lines, int] = {}
        self._time_ns: list[int] = []
        self._place: list[int] = []
        self._running: list[int] = []
        self._cost_ns = 0
        self._watched_ns = 0
        self._own_cpu_ns = 0  # of the sampled thread
        self._ready_ns: int | None = 0  # runnable but not scheduled; None where that is not counted
        self._enough = False
        self._switch_s = sys.getswitchinterval()
        self._thread: threading.Thread | None = None
        self._others = OtherThreads(thread_id) if depth == 1 else None

    def start(self) -> None:
        """Begin an interval of sampling."""
        if self._thread is None:
            self._enough = False
            if self._depth == 1:
                self._switch_s = sys.getswitchinterval()
                _OF_FORKED.append(self._switch_s)
                sys.setswitchinterval(min(self._switch_s, SWITCH_S if self._is_alone() else SHARED_SWITCH_S))
            self._thread = threading.Thread(target=self._run, name=f"{OWN_THREADS}sampler", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the interval; does nothing where none is under way."""
        if self._thread is not None:
            self._enough = True
            self._thread.join()
            self._thread = None
            if self._depth == 1:
                sys.setswitchinterval(self._switch_s)
                _OF_FORKED.clear()

    def _is_alone(self) -> bool:
        """Return whether the sampled thread is the only one, ours left out."""
        others = (thread for thread in threading.enumerate() if thread.ident != self._thread_id)
        return all(thread.name.startswith(OWN_THREADS) for thread in others)

    def rows(self) -> dict[str, object]:
        """Return the samples so far."""
        return {
            "places": [list(path[0]) for path in self._places],
            "time_ns": self._time_ns,
            "place": self._place,
            "running": self._running,
            "others": self._others.rows() if self._others is not None else [],
            "watched_ns": self._watched_ns,
            "own_cpu_ns": self._own_cpu_ns,
        }

    def paths(self) -> dict[str, object]:
        """Return the samples so far with the callers of each line, as the file of the steps has them."""
        num = len(self._place)  # the thread may be about to add one
        return {
            "paths": [[list(place) for place in path] for path in list(self._places)],
            "sampled_ns": self._time_ns[:num],
            "path": self._place[:num],
        }

    @property
    def lines(self) -> list[tuple[str, int]]:
        """Return the file and line of every place seen so far."""
        seen = [place for path in list(self._places) for place in path]
        seen += self._others.places if self._others is not None else []
        return list(dict.fromkeys((file, line) for file, line, _ in seen))

    def summary(self) -> Mapping[str, object]:
        """Return the period, the number of samples and what they cost: CPU time of sampling over time watched.

        ``ready_share`` is the part of that time in which the thread could have run but had no core.
        """
        cost = self._cost_ns / self._watched_ns if self._watched_ns else 0.0
        period = self._watched_ns / 1e6 / len(self._time_ns) if self._time_ns else self._period * 1e3
        return {
            "period_ms": self._period * 1e3,
            "mean_period_ms": round(period, 3),
            "num_samples": len(self._time_ns),
            "cost_share": round(cost, 5),
            "ready_share": None
            if self._ready_ns is None or not self._watched_ns
            else round(self._ready_ns / self._watched_ns, 5),
        }

    def _run(self) -> None:
        _wake_on_time()
        began, used = time.perf_counter_ns(), time.thread_time_ns()
        ready_ns = _ready_ns(self._native_id)
        pause, num = self._period, 0
        most = MAX_WINDOW_CPU_SHARE if self._depth == 1 else MAX_CPU_SHARE
        if self._others is not None:
            self._others.begin()
        own_ns = cpu_ns(self._native_id)
        with _states(self._thread_id, self._native_id) as state:
            while not self._enough and len(self._time_ns) < MAX_SAMPLES:
                time.sleep(pause)  # an Event would cost several times as much per round
                frames = sys._current_frames()
                frame = frames.get(self._thread_id)
                if frame is None:
                    break
                self._time_ns.append(time.time_ns())
                self._place.append(self._row_of(frame))
                if self._others is not None:
                    self._others.look(frames, self._line_of)
                del frame, frames
                self._running.append(state())
                num += 1
                pause = max(self._period, (time.thread_time_ns() - used) / (1e9 * num * most))
        if self._others is not None:
            self._others.end()
        self._own_cpu_ns += max(cpu_ns(self._native_id) - own_ns, 0)
        self._cost_ns += time.thread_time_ns() - used
        self._watched_ns += time.perf_counter_ns() - began
        now_ns = _ready_ns(self._native_id)
        known = None not in (self._ready_ns, ready_ns, now_ns)
        self._ready_ns = (self._ready_ns or 0) + (now_ns or 0) - (ready_ns or 0) if known else None

    def _row_of(self, frame: FrameType) -> int:
        """Return the row of the innermost user lines; of the innermost line at all where there is none."""
        found: list[tuple[str, int, str]] = []
        each: FrameType | None = frame
        while each is not None and len(found) < self._depth:
            if self._is_user_code(each.f_code):
                found.append(_place(each))
            each = each.f_back
        if len(found) > 1 and found[-1][0] == _BOOTSTRAP:
            found.pop()
        return self._places.setdefault(tuple(found or [_place(frame)]), len(self._places))

    def _line_of(self, frame: FrameType) -> tuple[str, int, str]:
        """Return the innermost user line of a frame; of the frame itself where there is none."""
        each: FrameType | None = frame
        while each is not None:
            if self._is_user_code(each.f_code):
                return _place(each)
            each = each.f_back
        return _place(frame)

    def _is_user_code(self, code: CodeType) -> bool:
        known = self._user_code.get(code)
        if known is None:
            known = self._user_code[code] = is_users(code)
        return known


_OF_FORKED: list[float] = []  # while a window is sampled: the switching that a forked process begins with


def _restore_in_forked() -> None:
    """Let processes that the script forks, such as a DataLoader's workers, have Python's own switching."""
    if _OF_FORKED:
        sys.setswitchinterval(_OF_FORKED[-1])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_in_forked)


def is_users(code: CodeType) -> bool:
    """Return whether code is the user's: neither of the standard library, nor of an installed package, nor of ours."""
    return not code.co_filename.startswith(_LIBRARIES)


def _place(frame: FrameType) -> tuple[str, int, str]:
    return frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name


def _libraries() -> tuple[str, ...]:
    """Return what the files of other people's code begin with."""
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (*(p + "/" for p in paths if p), str(Path(__file__).resolve().parents[2]) + "/", "<frozen ", "<__array")


_LIBRARIES = _libraries()
_BOOTSTRAP = "<string>"  # the outermost frame of the process that runs the script: python -c


def _ready_ns(native_id: int) -> int | None:
    """Return how long the thread was runnable but not scheduled since it began; None where that is not counted."""
    try:
        fields = Path(f"/proc/self/task/{native_id}/schedstat").read_text(encoding="ascii").split()
    except OSError:  # no such file, or the thread has ended
        return None
    return int(fields[1]) if len(fields) > 1 else None


def _wake_on_time() -> None:
    """Let timed waits of this thread end when they should: Linux lets them last 50 µs longer, twice what SWITCH_S is.

    Of samples of a dataset that computes 0.11 ms in Python and 0.03 ms in torch.tensor, 71 to 75 % lie in the first
    then, and 28 to 33 % otherwise.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(
            PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0
        )  # no error matters: samples lie as before


@contextmanager
def _states(thread_id: int, native_id: int) -> Iterator[Callable[[], int]]:
    """Give a reader of what the thread does at this moment: 1 runs or is ready to, 0 waits, -1 unknown.

    Reading the file gives the interpreter up, so that a thread which waits for nothing else is ready by then. Without
    Linux' files the CPU time since the last reading decides, which misses waits shorter than the period.
    """
    try:
        file = os.open(f"/proc/self/task/{native_id}/stat", os.O_RDONLY)
    except OSError:
        yield _by_cpu_time(thread_id)
        return
    share = _cpu_share(thread_id)
    try:
        yield lambda: 1 if (share() or 0.0) >= BUSY_SHARE else _state_in(file)
    finally:
        os.close(file)


def _state_in(file: int) -> int:
    """Return the state in the line of /proc: the letter after the name, which is in parentheses and may hold any."""
    try:
        letter = os.pread(file, 256, 0).rpartition(b") ")[2][:1]
    except OSError:  # the thread has ended
        return UNKNOWN
    return int(letter == b"R") if letter else UNKNOWN


def _by_cpu_time(thread_id: int) -> Callable[[], int]:
    share = _cpu_share(thread_id)

    def running() -> int:
        found = share()
        return UNKNOWN if found is None else int(found >= RUNNING_SHARE)

    return running


def _cpu_share(thread_id: int) -> Callable[[], float | None]:
    """Return a reader of the thread's CPU time over the time since the last reading, None where it is not counted."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return lambda: None
    clock = time.pthread_getcpuclockid(thread_id)
    last_cpu, last_at = time.clock_gettime_ns(clock), time.perf_counter_ns()

    def share() -> float:
        nonlocal last_cpu, last_at
        cpu, at = time.clock_gettime_ns(clock), time.perf_counter_ns()
        found = (cpu - last_cpu) / max(at - last_at, 1)
        last_cpu, last_at = cpu, at
        return found

    return share
