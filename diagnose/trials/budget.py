"""The time that a whole proof may take: the recording before the trials, the trials, and the recording after them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["Budget"]

_NO_TIME_AFTER = (
    "No time of the budget was left to record the steps with the changes; give it more to see what binds them."
)


class Budget:
    """Seconds, counted from now on.

    The recording at the end is taken to need as long as the one at the beginning did; so much is kept back for it.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends = time.monotonic() + seconds
        self._recording_s = 0.0

    @property
    def left(self) -> float:
        """Return the seconds that are left, not below 0."""
        return max(self._ends - time.monotonic(), 0.0)

    @property
    def for_trials(self) -> float:
        """Return the seconds that trials may take."""
        return max(self.left - self._recording_s, 0.0)

    def records(self, best: Sequence[str], notes: list[str]) -> bool:
        """Say whether the best changes are recorded at the end; where only time forbids it, a note says so."""
        has_time = self.left > 0 and self.left >= self._recording_s
        if best and not has_time:
            notes.append(_NO_TIME_AFTER)
        return bool(best) and has_time

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Time the first recording."""
        began = time.monotonic()
        yield
        self._recording_s = time.monotonic() - began
