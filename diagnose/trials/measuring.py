"""What trials are given and what they give: the runs of a script, its recording, and the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from diagnose.model.diagnosis import Trial
from diagnose.trials.spec import TrialResult

__all__ = ["ProveResult", "Recorded", "Runs"]


class Runs(Protocol):
    """What runs the script."""

    warm_up: int
    timed: int
    edits: bool  # whether changes can be made in the text of what runs

    def time(self, ids: Sequence[str], *, timeout_s: float) -> TrialResult:
        """Run the script with patches; a failure is a result too."""


class Recorded(NamedTuple):
    """What the recording before the trials showed."""

    step_ns: Sequence[float] = ()  # of steps without a profiler
    took_s: float = 0.0  # with its analysis; 0 where it was made before
    kept_s: float = 0.0  # beyond the budget: kept for a recording with the gains, free where there are none


@dataclass
class ProveResult:
    """What the runs showed."""

    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    best: tuple[str, ...] = ()  # ids whose gain is certain, applied together in the last trial
    num_runs: int = 0
    nothing_tried: bool = False  # the budget ended before
