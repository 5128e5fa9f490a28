"""How a long run is watched."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.model.limits import STEP_SOURCES, StepOn
from diagnose.monitor.metrics import address_of
from diagnose.monitor.run_folder import RUNS, check_name
from diagnose.monitor.windows import WindowLimits

EVERY = 50  # steps of a row: their median shrugs off an odd step, and a slowdown is seen after two rows


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How to watch.

    Raises:
        UsageError: a value that makes no sense.
    """

    name: str = "run"
    every: int = EVERY  # steps of a row
    slow: float = 0.2  # share by which steps become slower before a window is recorded
    folder: Path = Path(RUNS)
    step_on: StepOn = "auto"
    dataflow: bool = True  # record two steps as a program when memory grows
    limits: WindowLimits = field(default_factory=WindowLimits)
    prometheus: str = ""  # "PORT" on the loopback, or "ADDRESS:PORT", to serve metrics at

    def __post_init__(self) -> None:
        """Refuse what cannot be honoured."""
        check_name(self.name)
        if self.every < 2:
            raise UsageError(f"A row needs at least 2 steps, not every={self.every}.")
        if not self.slow > 0:
            raise UsageError(f"The share by which steps become slower must be above zero, not {self.slow}.")
        if self.step_on not in STEP_SOURCES:
            raise UsageError(f"Invalid step_on {self.step_on!r}: use one of {', '.join(STEP_SOURCES)}.")
        if self.limits.count < 0 or not self.limits.total_mb > 0:
            raise UsageError("The number of windows cannot be negative, and what they may take must be above 0 MB.")
        if self.prometheus:
            address_of(self.prometheus)
