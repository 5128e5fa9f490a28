"""How long steps are watched once everything is recorded: until what recurs now and then has been seen to recur."""

from __future__ import annotations

from statistics import median

from diagnose.capture.record.run_log import StepState
from diagnose.model.growth import grows

__all__ = ["WatchedSteps"]

STEADY_NS = 3_000_000_000  # of steps without a profiler, where they are all alike
ALL_NS = 5_000_000_000  # of steps, recorded ones included, where no window was broken off inside one
GROWING_NS = 8_000_000_000  # where they get longer one after the other: samples must show at which place
MAX_NS = 15_000_000_000  # of steps without a profiler, where some are longer than the others
MIN_LONG_RATIO = 3.0  # times the median: such a step does something that the others do not
MIN_LONG_SHARE = 0.05  # of the time: less, and a collection or a pause of the machine is not waited for again
MIN_RECURRENCES = 3  # show a period
LOOK_NS = 250_000_000  # of steps between two looks


class WatchedSteps:
    """Takes the length of every step since times were steady."""

    def __init__(self) -> None:
        self._plain: list[int] = []
        self._plain_ns = self._all_ns = 0
        self._broken_ns = 0  # the longest step inside which a window was broken off
        self._look_at_ns = 0
        self._was_enough = False

    def add(self, took_ns: int, state: StepState, *, broken_off: bool = False) -> None:
        """Take a step that is over; a window broken off inside it was too small for what may come again."""
        self._all_ns += took_ns
        if broken_off:
            self._broken_ns = max(self._broken_ns, took_ns)
        if state == "plain":
            self._plain.append(took_ns)
            self._plain_ns += took_ns

    @property
    def enough(self) -> bool:
        """Return whether further steps are unlikely to show anything else."""
        if not self._was_enough and self._all_ns >= self._look_at_ns:
            self._look_at_ns = self._all_ns + LOOK_NS
            self._was_enough = self._is_enough()
        return self._was_enough

    def _is_enough(self) -> bool:
        usual = median(self._plain) if self._plain else 0
        long = [ns for ns in self._plain if ns > MIN_LONG_RATIO * usual]
        if sum(long) - usual * len(long) >= MIN_LONG_SHARE * max(self._plain_ns, 1) and long:
            return self._plain_ns >= (STEADY_NS if len(long) >= MIN_RECURRENCES else MAX_NS)
        if usual and self._broken_ns > MIN_LONG_RATIO * usual:
            return self._plain_ns >= ALL_NS
        if self._plain_ns < GROWING_NS and grows(self._plain):
            return False
        return self._plain_ns >= STEADY_NS or self._all_ns >= ALL_NS
