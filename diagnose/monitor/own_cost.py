"""What the watch itself takes of a step, measured in the run, and how many steps it may time at that price."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from diagnose.text.numbers import duration, percent

__all__ = ["MAX_SHARE", "METERED_STEPS", "OwnCost"]

MAX_SHARE = 0.005  # of a step
METERED_STEPS = 8  # of each row: two readings of the clock for each hook
KEPT = 9  # rows whose measure counts: their median shrugs off an interruption
MIN_ROWS = 4  # before a decision: the first ones hold cold caches
MAX_INTERVAL = 100  # a longer one saves nothing: what is left is the call of the hooks
CALM = 1.5  # times the measure must still be small enough before more steps are timed again


class OwnCost:
    """Takes what the hooks of a timed step and what a row took; ``interval`` is how many steps one is timed of."""

    def __init__(self) -> None:
        self.interval = 1
        self._steps: deque[float] = deque(maxlen=KEPT)
        self._rows: deque[float] = deque(maxlen=KEPT)

    def add_steps(self, own_ns: int, steps: int) -> None:
        """Take what the hooks took in so many timed steps together."""
        self._steps.append(own_ns / steps)

    def add_row(self, own_ns: int) -> None:
        """Take what the end of a row took."""
        self._rows.append(own_ns)

    def per_step_ns(self, steps_of_row: int) -> float:
        """Return what a timed step takes, with its share of the row; 0 where nothing was measured yet."""
        if not self._steps or not self._rows:
            return 0.0
        return median(self._steps) + median(self._rows) / steps_of_row

    def decide(self, step_ns: float, steps_of_row: int, step: int) -> str:
        """Set the interval for steps of this length; return a sentence where no longer all of them are timed, else "".

        ``step`` is the number of the present one.
        """
        if min(len(self._steps), len(self._rows)) < MIN_ROWS or not step_ns > 0:
            return ""
        price = self.per_step_ns(steps_of_row) / (MAX_SHARE * step_ns)
        wanted = min(math.ceil(price), MAX_INTERVAL)
        if wanted <= self.interval:
            self.interval = max(1, min(self.interval, math.ceil(CALM * price)))
            return ""
        timed_all, self.interval = self.interval == 1, wanted
        if not timed_all:
            return ""
        return (
            f"Steps take {duration(step_ns)}, and timing each of them {percent(MAX_SHARE * price)} of that: from step "
            f"{step} on one in {wanted} is timed, to stay below {percent(MAX_SHARE)}."
        )
