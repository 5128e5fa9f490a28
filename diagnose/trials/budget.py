"""The time that ``diagnose prove`` may take: the recording before the trials, the trials, and the recording after."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from diagnose.errors import UsageError

__all__ = ["Budget", "parse_budget"]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}

MAX_KEPT_SHARE = 1 / 3  # of what is left after the first recording
_NO_TIME_AFTER = (
    "The budget was used up before the steps with the changes could be recorded; raise it to see what limits them."
)


def parse_budget(text: str, *, name: str = "--budget") -> float:
    """Return seconds from 90, 90s, 10m or 1h; ``name`` is what the option is called.

    Raises:
        UsageError: it is none of these, or not above zero.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if seconds <= 0:
        raise UsageError(f"Invalid {name} '{text}': use 90s, 10m or 1h.")
    return seconds


class Budget:
    """Seconds, counted from now on.

    The recording at the end is taken to need as long as the one at the beginning did, its analysis included; so much is
    kept back for it, unless that is more than a third of what is left: then the trials get it all.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends = time.monotonic() + seconds
        self.recording_s = 0.0  # that the first recording took, with its analysis

    @property
    def left(self) -> float:
        """Return the seconds that are left, not below 0."""
        return max(self._ends - time.monotonic(), 0.0)

    @property
    def for_trials(self) -> float:
        """Return the seconds that trials may take."""
        kept_s = self.recording_s if self.recording_s <= MAX_KEPT_SHARE * self.left else 0.0
        return self.left - kept_s

    def records(self, best: Sequence[str], notes: list[str]) -> bool:
        """Return whether the best changes are recorded at the end; where only time forbids it, a note states so."""
        has_time = self.left > 0 and self.left >= self.recording_s
        if best and not has_time:
            notes.append(_NO_TIME_AFTER)
        return bool(best) and has_time

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Time the first recording."""
        began = time.monotonic()
        yield
        self.recording_s = time.monotonic() - began
