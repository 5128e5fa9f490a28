"""What was sampled of a thread so far, and what watching it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

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
