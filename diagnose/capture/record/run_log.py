"""A row for every step of the run, recorded or not: when it began, how long it took, and into which phases it went.

A profiler sees a few steps. What comes once in a hundred, an evaluation or a checkpoint, shows only here.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Literal, TypeAlias

from diagnose.capture.steps.phases import PhaseTimes

__all__ = ["STATES", "RunLog", "StepState"]

StepState: TypeAlias = Literal["plain", "light", "attribution", "edge"]
"""What was recorded of a step; an edge is one in which the tool started or had just stopped a profiler."""

STATES: tuple[StepState, ...] = ("plain", "light", "attribution", "edge")
MAX_STEPS = 200_000  # hours of most scripts; 8 numbers a step


class RunLog:
    """Holds the rows until they are written."""

    def __init__(self) -> None:
        self._began = array("q")  # wall clock, unix ns
        self._took = array("q")
        self._state = array("b")
        self._phases = {name: array("q") for name in PhaseTimes._fields}

    def __len__(self) -> int:
        return len(self._began)

    def add(self, ended_ns: int, took_ns: int, state: StepState, phases: PhaseTimes) -> None:
        """Take down a step that is over; the first 200,000 are kept."""
        if len(self) >= MAX_STEPS:
            return
        self._began.append(ended_ns - took_ns)
        self._took.append(took_ns)
        self._state.append(STATES.index(state))
        for name, value in zip(PhaseTimes._fields, phases, strict=True):
            self._phases[name].append(value)

    def rows(self, device_ns: Mapping[int, int]) -> dict[str, object]:
        """Return the content of the file; a phase that never came is left out.

        ``device_ns`` are times by the device's clock, by number of the step, which counts from 1.
        """
        by_device = [device_ns.get(i + 1, 0) for i in range(len(self))]
        return {
            **({"device_ns": by_device} if any(by_device) else {}),
            "began_ns": self._began.tolist(),
            "took_ns": self._took.tolist(),
            "state": self._state.tolist(),
            "phases": {name: column.tolist() for name, column in self._phases.items() if any(column)},
        }
