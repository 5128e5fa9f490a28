"""Where a thread is while no step ends: for the progress lines, and for a run that ends without one."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TypeAlias

from diagnose.capture.record.sampler import is_users, is_users_file
from diagnose.capture.record.taken import Taken
from diagnose.text.numbers import duration, percent

__all__ = ["PATIENCE_S", "StepWait", "spent_at"]

PATIENCE_S = 20.0  # without a step until a line is shown; each further one after twice the time
LOOK_S = 1.0
MIN_SHARE = 0.7  # of the samples, that are at a line or in what it calls
MIN_SAMPLES = 5

_Place: TypeAlias = tuple[str, int, str]  # file, line, function


class StepWait:
    """Shows a line about the thread that created it if no step ends for long."""

    def __init__(self, report: Callable[[str], None], *, is_busy: Callable[[], bool]) -> None:
        """``is_busy`` returns whether nothing is to be shown now, as work of ours goes on."""
        self._report, self._is_busy = report, is_busy
        self._ident, self._owner = threading.get_ident(), os.getpid()
        self._over = threading.Event()
        self._since, self._next_s = time.monotonic(), PATIENCE_S
        self.since_ns = time.time_ns()

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, name="diagnose-waits", daemon=True).start()

    def stepped(self) -> None:
        """Take notice of the end of a step on this thread."""
        self._ident, self._since, self._next_s = threading.get_ident(), time.monotonic(), PATIENCE_S
        self.since_ns = time.time_ns()

    def stop(self) -> None:
        """End the watch."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S) and os.getpid() == self._owner:
            self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        """Show where the thread is, if no step has ended for long enough."""
        waited_s = now_s - self._since
        if waited_s < self._next_s or self._is_busy():
            return
        self._next_s *= 2
        path = _users_lines(sys._current_frames().get(self._ident))
        if path:
            self._report(f"no step for {duration(waited_s * 1e9)}: running {_named(path)}")


def spent_at(taken: Taken | None, since_ns: int) -> str:
    """Return a sentence about the innermost line that most samples since a time share, "" without one."""
    if taken is None:
        return ""
    paths = list(taken.places)
    since = [row for time_ns, row in zip(taken.time_ns, taken.place, strict=False) if time_ns >= since_ns]
    if len(since) < MIN_SAMPLES:
        return ""
    total, num, depth = len(since), Counter[_Place](), dict[_Place, int]()
    for row, count in Counter(since).items():
        for callers, at in enumerate(reversed([at for at in paths[row] if is_users_file(at[0])])):
            num[at] += count
            depth[at] = max(depth.get(at, 0), callers)
    shared = [at for at in num if num[at] >= MIN_SHARE * total]
    if not shared:
        return ""
    at = max(shared, key=lambda at: depth[at])
    path = next(path for path in paths if at in path)
    took = duration(taken.time_ns[-1] - max(since_ns, taken.time_ns[0]))
    return f"{percent(num[at] / total, 0)} of the last {took} were spent at {_named(path[path.index(at) :])}."


def _users_lines(frame: FrameType | None) -> list[_Place]:
    """Return the lines of the user's that run, the innermost first."""
    found = []
    while frame is not None:
        if is_users(frame.f_code):
            found.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return found


def _named(path: Sequence[_Place]) -> str:
    """Return "search.py:5 in search, called at train.py:12 in main": the first line and the outermost function's."""
    (file, line, function), *callers = path
    text = f"{_short(file)}:{line} in {function}"
    outer = next((at for at in reversed(callers) if at[2] != "<module>" and is_users_file(at[0])), None)
    return text if outer is None else f"{text}, called at {_short(outer[0])}:{outer[1]} in {outer[2]}"


def _short(file: str) -> str:
    path = os.path.relpath(file) if file.startswith("/") else file
    return file if path.startswith("..") else path
