"""What was sampled of a thread so far, and what watching it cost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from diagnose.capture.record.other_threads import OtherThreads, cpu_ns

__all__ = ["Lines", "Taken"]

Lines: TypeAlias = tuple[tuple[str, int, str], ...]  # file, line, function; the innermost first


class Taken:
    """Samples of one thread, from stretches of watching it; ``rows`` has the layout of diagnose.model.capture.Samples.

    ``depth`` is how many lines of user code a row holds; with one, it is a window that is sampled, and other threads
    are looked at too.
    """

    def __init__(self, thread_id: int, native_id: int, period_ms: float, *, depth: int = 1) -> None:
        self.thread_id, self.native_id, self.depth = thread_id, native_id, depth
        self.period_ms = period_ms
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
        self._began: tuple[int, int | None, int] = (0, 0, 0)

    def begin(self) -> None:
        """Begin a stretch."""
        if self.others is not None:
            self.others.begin()
        self._began = time.perf_counter_ns(), _ready_ns(self.native_id), cpu_ns(self.native_id)

    def end(self) -> None:
        """End the stretch."""
        began_ns, ready_ns, own_ns = self._began
        if self.others is not None:
            self.others.end()
        self._own_cpu_ns += max(cpu_ns(self.native_id) - own_ns, 0)
        self._watched_ns += time.perf_counter_ns() - began_ns
        now_ns = _ready_ns(self.native_id)
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
        period = self._watched_ns / 1e6 / len(self.time_ns) if self.time_ns else self.period_ms
        return {
            "period_ms": self.period_ms,
            "mean_period_ms": round(period, 3),
            "num_samples": len(self.time_ns),
            "cost_share": round(cost, 5),
            "ready_share": None
            if self._ready_ns is None or not self._watched_ns
            else round(self._ready_ns / self._watched_ns, 5),
            "method": self.method or None,
            "fallback": self.fallback or None,
        }


def _ready_ns(native_id: int) -> int | None:
    """Return how long the thread was runnable but not scheduled since it began; None where that is not counted."""
    try:
        fields = Path(f"/proc/self/task/{native_id}/schedstat").read_text(encoding="ascii").split()
    except OSError:  # no such file, or the thread has ended
        return None
    return int(fields[1]) if len(fields) > 1 else None
