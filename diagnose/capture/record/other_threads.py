"""Where the script's other threads are, and what CPU time they take, while the training thread is sampled.

A thread that computes in Python and one that computes in C look alike: both are in a function of the script and take
CPU time. The one that computes in Python gives the interpreter up at jumps and at the beginnings of functions, and is
then seen at these; the other is seen at the call that it is in.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import TypeAlias

__all__ = ["OWN_THREADS", "WAITING", "OtherThreads", "cpu_ns"]

OWN_THREADS = "diagnose-"
LOOK_EVERY = 2  # samples of the training thread
MAX_PLACES = 8  # of a thread, those that it was seen at most
MAX_THREADS = 64
WAITING = ("threading.py", "queue.py", "selectors.py", "socket.py", "connection.py", "subprocess.py", "ssl.py")

_Place: TypeAlias = tuple[str, int, str]


class _Thread:
    """What was seen of one thread."""

    def __init__(self, name: str, native_id: int) -> None:
        self.name, self.native_id = name, native_id
        self.cpu_ns = 0
        self.num = 0  # samples, those included in which it waits for another thread
        self.places: dict[_Place, list[int]] = {}  # samples, and those in which it computes in Python for certain


class OtherThreads:
    """Counts where threads are that are neither the sampled one nor ours."""

    def __init__(self, thread_id: int) -> None:
        self._thread_id = thread_id
        self._threads: dict[int, _Thread | None] = {}  # None: not of interest
        self._began: dict[int, int] = {}
        self._num = 0
        self._python: dict[tuple[object, int], bool] = {}

    def begin(self) -> None:
        """Begin an interval of sampling."""
        for ident in list(sys._current_frames()):
            self._known(ident)
        self._began = {i: cpu_ns(each.native_id) for i, each in self._threads.items() if each is not None}

    def end(self) -> None:
        """End the interval; a thread that has ended meanwhile has the time of the intervals before."""
        for ident, each in self._threads.items():
            if each is not None:
                each.cpu_ns += max(cpu_ns(each.native_id) - self._began.get(ident, 0), 0)

    def look(self, frames: Mapping[int, FrameType], place_of: Callable[[FrameType], _Place]) -> None:
        """Take down where the threads are, at each second call; ``place_of`` returns the user's line of a frame."""
        self._num += 1
        if self._num % LOOK_EVERY or len(frames) < 3:  # the sampled one and ours
            return
        for ident, frame in frames.items():
            thread = self._known(ident)
            if thread is None:
                continue
            thread.num += 1
            if frame.f_code.co_filename.endswith(WAITING):
                continue
            place = place_of(frame)
            seen = thread.places.setdefault(place, [0, 0])
            seen[0] += 1
            seen[1] += self._computes_in_python(frame)

    def add(self, ident: int, num: int, lines: Iterable[tuple[_Place, int, int]]) -> None:
        """Add what was seen of a thread: samples, and lines with how often it was there and computed in Python."""
        thread = self._known(ident)
        if thread is None:
            return
        thread.num += num
        for place, seen, in_python in lines:
            counts = thread.places.setdefault(place, [0, 0])
            counts[0] += seen
            counts[1] += in_python

    @property
    def places(self) -> list[_Place]:
        """Return the lines that threads were seen at."""
        return [place for each in self._threads.values() if each is not None for place in list(each.places)]

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each thread that was seen in a function of its own."""
        found = []
        for each in self._threads.values():
            if each is None or not each.places:
                continue
            most = sorted(each.places.items(), key=lambda item: -item[1][0])[:MAX_PLACES]
            found.append(
                {
                    "name": each.name,
                    "cpu_ns": each.cpu_ns,
                    "num": each.num,
                    "places": [[list(place), *counts] for place, counts in most],
                }
            )
        return found

    def _known(self, ident: int) -> _Thread | None:
        if ident not in self._threads:
            if len(self._threads) >= MAX_THREADS:
                return None
            thread = next((each for each in threading.enumerate() if each.ident == ident), None)
            wanted = thread is not None and ident != self._thread_id and not thread.name.startswith(OWN_THREADS)
            self._threads[ident] = _Thread(thread.name, thread.native_id or 0) if wanted and thread else None
        return self._threads[ident]

    def _computes_in_python(self, frame: FrameType) -> bool:
        where = frame.f_code, frame.f_lasti
        known = self._python.get(where)
        if known is None:
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]] if frame.f_lasti >= 0 else "RESUME"
            known = self._python[where] = "JUMP" in name or name.startswith("RESUME")
        return known


def cpu_ns(native_id: int) -> int:
    """Return the time that a thread has spent on CPUs; 0 where that is not counted, or it has ended."""
    try:
        return int(Path(f"/proc/self/task/{native_id}/schedstat").read_text(encoding="ascii").split()[0])
    except (OSError, IndexError, ValueError):
        return 0
