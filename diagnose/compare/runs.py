"""The step times of one run, as a comparison uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.model.diagnosis import Diagnosis

__all__ = ["RunTimes"]

MIN_STEPS = 3  # whose mean stands for a run


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Step times of one process or one set of ranks, ns; none is 0."""

    unprofiled: tuple[float, ...]
    recorded: tuple[float, ...]  # at least one

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> RunTimes:
        """Return the times of the run that was diagnosed."""
        recorded = _positive(diagnosis.step_times_ns)
        return cls(
            _positive(diagnosis.source.unprofiled_step_ns),
            recorded if len(recorded) >= MIN_STEPS else (diagnosis.step_ns,),
        )

    @property
    def has_unprofiled(self) -> bool:
        """Return whether enough steps were timed without the profiler."""
        return len(self.unprofiled) >= MIN_STEPS

    def steps(self, measure: str) -> tuple[float, ...]:
        """Return the times of ``unprofiled`` or ``recorded`` steps."""
        return self.unprofiled if measure == "unprofiled" else self.recorded


def _positive(times: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(ns) for ns in times if ns > 0)
