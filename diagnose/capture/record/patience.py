"""How long a quick recording waits, so that the whole command answers within 15 s.

What a script does before its first sign of work, such as reading a model, is no step and is waited for.
"""

from __future__ import annotations

import math
import time

from diagnose.capture.options import QUICK_S

__all__ = ["LONG_STEP_S", "Patience"]

LONG_STEP_S = 1.0  # too long to wait for several of them
PATIENCE_S = 3.0  # for the end of the first step, from the first sign of work,
BEGIN_S = 6.0  # but of the script's whole run; importing torch takes 2 to 4 of them
END_S = BEGIN_S + QUICK_S  # of the run: writing, reading, the rules and the report have the rest of 15 s
MIN_WINDOW_S = 2.0  # for a script that prepared for longer: 400 samples of the executing line


class Patience:
    """Times what a quick recording waits for, from the start of the script's run, which is now."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()

    def left_s(self, first_sign_at: float | None) -> float:
        """Return in how many seconds recording begins in the midst of a step; a sign is an event or a wait."""
        if first_sign_at is None:
            return math.inf
        return min(first_sign_at + PATIENCE_S, self._started_at + BEGIN_S) - time.monotonic()

    @property
    def window_s(self) -> float:
        """Return how long what is recorded from now on may take."""
        return min(QUICK_S, max(MIN_WINDOW_S, self._started_at + END_S - time.monotonic()))
