"""Finds out when the next step comes that a run has now and then and that takes longer than the others."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from diagnose.capture.record.folder import StepState
from diagnose.model.statistics import period_of

MIN_RARE_SHARE = 0.05  # of the time: what takes less, as a collection or a pause of the machine, is not waited for
MAX_STEPS = 4096  # that are compared, which takes 30 ms


class Due(NamedTuple):
    """The next long step."""

    steps: int  # that come before it
    every: int  # steps from one to the next
    ratio: float  # of its length to the usual one


class LongSteps:
    """Takes the length of every step from the first on."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, StepState]] = []
        self._compared = 0
        self._found: tuple[int, int, float] | None = None  # period, place in it, ratio

    def add(self, took_ns: int, state: StepState) -> None:
        """Take a step that is over."""
        self._steps.append((took_ns, state))

    def due(self, first: int) -> Due | None:
        """Return when the next long step comes, None where none recur; steps before ``first`` are warming up.

        Steps are compared anew once there are a quarter more.
        """
        num = len(self._steps)
        if num <= MAX_STEPS and num >= 1.25 * self._compared:
            self._compared, self._found = num, self._compare(first)
        if self._found is None:
            return None
        every, place, ratio = self._found
        return Due((place - num) % every, every, ratio)

    def _compare(self, first: int) -> tuple[int, int, float] | None:
        by_state: dict[StepState, list[int]] = {}
        for ns, state in self._steps[first:]:
            by_state.setdefault(state, []).append(ns)
        usual = {state: median(times) for state, times in by_state.items() if state != "edge" and len(times) > 1}
        ratios = [ns / usual[state] if usual.get(state) else 1.0 for ns, state in self._steps[first:]]
        every = period_of(ratios)
        if every == 1:
            return None
        at_place = [median(ratios[place::every]) for place in range(every)]
        ratio = max(at_place)
        if ratio - median(ratios) < MIN_RARE_SHARE * sum(at_place):
            return None
        return every, first + at_place.index(ratio), ratio
