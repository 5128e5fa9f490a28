"""Finds out when the next step comes that a run has now and then and that takes longer than the others."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

import numpy as np

from diagnose.capture.record.folder import StepState
from diagnose.model.limits import MIN_RECURRENCES, PREVAILS

MIN_RARE_SHARE = 0.05  # of the time: what takes less, as a collection or a pause of the machine, is not waited for


class Due(NamedTuple):
    """The next long step."""

    steps: int  # that come before it
    every: int  # steps from one to the next
    longer_ns: float  # than the usual one


class LongSteps:
    """Takes the length of every step from the first on."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, StepState]] = []
        self._compared = 0
        self._found: tuple[int, int, float] | None = None  # period, place in it, ns that it takes longer

    def add(self, took_ns: int, state: StepState) -> None:
        """Take a step that is over."""
        self._steps.append((took_ns, state))

    def due(self, first: int) -> Due | None:
        """Return when the next long step comes, None where none recur; steps before ``first`` are warming up.

        Steps are compared anew once there are a quarter more.
        """
        num = len(self._steps)
        if num <= 4096 and num >= 1.25 * self._compared:  # that are compared, which takes some 50 ms
            self._compared, self._found = num, self._compare(first)
        if self._found is None:
            return None
        every, place, longer_ns = self._found
        return Due((place - num) % every, every, longer_ns)

    def _compare(self, first: int) -> tuple[int, int, float] | None:
        """Return after how many steps one is nearly always among the longest, its place, and what it takes longer.

        Of several it is that of the steps which take most of the time beyond that of others. A step is set against the
        median of those that were recorded in the same way.
        """
        by_state: dict[StepState, list[int]] = {}
        for ns, state in self._steps[first:]:
            by_state.setdefault(state, []).append(ns)
        usual: dict[StepState, float] = {}
        for state, times in by_state.items():
            if state != "edge" and len(times) > 1:
                usual[state] = median(times)
        ratio = np.array([ns / usual[state] if usual.get(state) else 0.0 for ns, state in self._steps])
        ratio[:first] = 0.0
        known = np.sort(ratio[ratio > 0])[::-1]
        usually = float(np.median(known)) if len(known) else 0.0
        found, most = None, MIN_RARE_SHARE
        for every in range(2, len(ratio) // MIN_RECURRENCES + 1):
            rows = np.append(ratio, np.zeros(-len(ratio) % every)).reshape(-1, every)
            num = (rows > 0).sum(axis=0)
            longest = (rows > usually) & (rows >= known[np.maximum(num, 1) - 1])
            is_long = (num >= MIN_RECURRENCES) & (longest.sum(axis=0) >= PREVAILS * num)
            for place in np.flatnonzero(is_long).tolist():
                long = float(np.median(rows[rows[:, place] > 0, place]))
                share = (long - usually) / (long + (every - 1) * usually)
                if share > most:
                    found, most = (every, place, (long - usually) * usual.get("plain", 0)), share
        return found
