"""What was sampled of a thread so far, and what watching it cost."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

# Where the script's other threads are, and what CPU time they take, while the training thread is sampled.

OWN_THREADS = "diagnose-"
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

    def begin(self) -> None:
        """Begin an interval of sampling."""
        for ident in list(sys._current_frames()):
            self._known(ident)
        self._began = {i: schedstat(each.native_id)[0] for i, each in self._threads.items() if each is not None}

    def end(self) -> None:
        """End the interval; a thread that has ended meanwhile has the time of the intervals before."""
        for ident, each in self._threads.items():
            if each is not None:
                each.cpu_ns += max(schedstat(each.native_id)[0] - self._began.get(ident, 0), 0)

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
            most = sorted(each.places.items(), key=lambda item: -item[1][0])[:8]
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
            if len(self._threads) >= 64:
                return None
            thread = next((each for each in threading.enumerate() if each.ident == ident), None)
            wanted = thread is not None and ident != self._thread_id and not thread.name.startswith(OWN_THREADS)
            self._threads[ident] = _Thread(thread.name, thread.native_id or 0) if wanted and thread else None
        return self._threads[ident]


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

    ``depth`` is how many lines of user code a row holds; with one, it is a window that is sampled, and other threads
    are looked at too. ``max_share`` is what sampling may take of a core.
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
        self.others = OtherThreads(thread_id) if depth == 1 else None
        self.cost_ns = 0
        self.method, self.fallback = "", ""  # how frames were read last, and why not from memory
        self._watched_ns = 0
        self._own_cpu_ns = 0  # of the sampled thread
        self._ready_ns: int | None = 0  # runnable but not scheduled; None where that is not counted
        self._began: tuple[int, int, int | None] = (0, 0, 0)

    def begin(self) -> None:
        """Begin a stretch."""
        if self.others is not None:
            self.others.begin()
        self._began = time.perf_counter_ns(), *self._schedstat(self.native_id)

    def end(self) -> None:
        """End the stretch."""
        began_ns, own_ns, ready_ns = self._began
        if self.others is not None:
            self.others.end()
        now_own_ns, now_ns = self._schedstat(self.native_id)
        self._own_cpu_ns += max(now_own_ns - own_ns, 0)
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
            "others": self.others.rows() if self.others is not None else [],
            "watched_ns": self._watched_ns,
            "own_cpu_ns": self._own_cpu_ns,
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
        seen = [place for path in list(self.places) for place in path]
        seen += self.others.places if self.others is not None else []
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
