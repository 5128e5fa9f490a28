"""One stretch of sampling: when to look, what was seen, and what looking costs."""

from __future__ import annotations

import math
import os
import time
from array import array
from typing import NamedTuple

from .layout import UnreadableError
from .reader import MAX_STACK, EndedError, FrameReader, Place

UNKNOWN = -1  # whether the thread ran
BOOTSTRAP = "<string>"  # the outermost frame of the process that runs a script: python -c


def shortened(path: list[Place], depth: int) -> tuple[Place, ...]:
    """Return the innermost lines, at most ``depth``, and of a longer path the outermost three too, each line once.

    A search calls itself many times: what calls it stands at the far end. The three are the script's, its main
    function's and one that this calls.
    """
    path = list(dict.fromkeys(path))
    return tuple(path if len(path) <= depth + 3 else [*path[:depth], *path[-3:]])


def state_in(file: int) -> int:
    """Return whether a thread runs or is ready to, by the letter behind its name, which may hold any, in its stat."""
    try:
        letter = os.pread(file, 256, 0).rpartition(b") ")[2][:1]
    except OSError:  # the thread has ended
        return UNKNOWN
    return int(letter == b"R") if letter else UNKNOWN


class Order(NamedTuple):
    """What to sample."""

    ident: int
    native_id: int
    period_ns: int
    depth: int  # innermost lines of user code in a row
    max_share: float  # of a core
    max_samples: int


class Rows(NamedTuple):
    """What was seen since the last time."""

    places: tuple[tuple[Place, ...], ...]  # new ones, the innermost line first
    time_ns: bytes  # int64
    place: bytes  # int32: row of all places of the stretch
    running: bytes  # int8
    cost_ns: int


class Stretch:
    """Samples one thread of a process."""

    def __init__(self, order: Order, reader: FrameReader, pid: int) -> None:
        self._order, self._reader = order, reader
        self._thread = reader.thread(order.ident)
        self._state = os.open(f"/proc/{pid}/task/{order.native_id}/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._rows: dict[tuple[Place, ...], int] = {}
        self._num_sent = 0
        self._time, self._place, self._running = array("q"), array("i"), array("b")
        self._cost_from, self._began_ns = time.process_time_ns(), time.process_time_ns()
        self._num, self._in_a_row, self._spread = 0, 0, 0.0
        self._over = False
        self._due_ns = time.monotonic_ns() + order.period_ns

    def close(self) -> None:
        """Close what it reads from."""
        os.close(self._state)

    @property
    def due_s(self) -> float | None:
        """Return in how many seconds to look; None for never."""
        return None if self._over else max(self._due_ns - time.monotonic_ns(), 0) / 1e9

    def look(self) -> None:
        """Take a sample, if it is time.

        Pauses vary around the period, so that what recurs at the same pace is seen at all of its parts.
        """
        if self._over or time.monotonic_ns() < self._due_ns:
            return
        self._sample()
        self._num += 1
        if self._num >= self._order.max_samples:
            self._over = True
        period = self._order.period_ns
        earned = (time.process_time_ns() - self._began_ns) / (self._num * self._order.max_share)
        self._spread = (self._spread + 0.618034) % 1.0  # comes near every point of [0, 1) soonest
        # A sample may be dear because all of its code was new: the next one is at most 8 periods away.
        self._due_ns = time.monotonic_ns() + int(max(period, min(earned, 8 * period)) * (0.5 + self._spread))

    def take(self) -> Rows:
        """Return what was seen since the last time."""
        now, places = time.process_time_ns(), tuple(self._rows)
        found = Rows(
            places[self._num_sent :],
            self._time.tobytes(),
            self._place.tobytes(),
            self._running.tobytes(),
            now - self._cost_from,
        )
        self._num_sent, self._cost_from = len(places), now
        self._time, self._place, self._running = array("q"), array("i"), array("b")
        return found

    def _sample(self) -> None:
        try:
            found = self._read()
        except EndedError:
            self._over = True
            return
        except UnreadableError:
            self._in_a_row += 1
            self._over = self._in_a_row >= 50  # in a row: no more are tried
            return
        self._in_a_row = 0
        seen_ns, path = found
        if len(path) > 1 and path[-1][0] == BOOTSTRAP:
            path = path[:-1]
        self._time.append(seen_ns)
        self._place.append(self._rows.setdefault(path, len(self._rows)))
        self._running.append(state_in(self._state))

    def _read(self) -> tuple[int, tuple[Place, ...]]:
        """Return when the thread was seen, in the middle of reading its frames, and where: its lines.

        Raises:
            EndedError: the thread has ended.
            UnreadableError: its frames cannot be read now.
        """
        order, quickest = self._order, math.inf
        found: tuple[int, tuple[Place, ...]] = (0, ())
        # The quickest of three readings counts: one may be long because all of its code is new.
        for _ in range(3):
            before_ns = time.time_ns()
            seen = self._reader.users(self._thread, order.ident, 1 if order.depth == 1 else MAX_STACK)
            took_ns = abs(time.time_ns() - before_ns)  # the clock may be set back
            if took_ns < quickest:
                quickest, found = (
                    took_ns,
                    (before_ns + took_ns // 2, shortened([each.place for each in seen], order.depth)),
                )
            # 0.1 to 0.3 ms on a virtual machine. If this process loses its core meanwhile it is some ms, and what it
            # sees is of later: a line of the next batch would lie in the optimizer's step.
            if took_ns <= 500_000:
                break
        return found
