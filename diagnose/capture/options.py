"""What a capture may do and how much: the options of ``diagnose trace`` as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.model.limits import STEP_SOURCES, StepOn

QUICK_S = 4.0  # of a quick recording: 800 samples of the executing line
MAX_MB = 200.0  # torch needs six times as much memory to write a trace (measured), and minutes for more


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """How to capture; the bounds hold inside a step too.

    Raises:
        UsageError: a value that makes no sense.
    """

    output: Path  # the capture folder, made by the capture
    steps: int | None = None  # in the timing window and without profiling; half of it, at most 20, in the attribution
    # window. None: 10, and of short steps a second timing window of up to 100, so that it lasts half a second
    skip: int | None = None  # most steps to wait for steadiness; None: 40, with several ranks exactly 20
    step_on: StepOn = "auto"
    max_seconds: float = 300.0  # from the first step to the last window written; not applied with several ranks
    max_mb: float = MAX_MB  # JSON text of both windows together, before compression
    quick: bool = False  # one window of at most QUICK_S
    dataflow: bool = True  # record two steps as a program, after the windows
    keep_going: bool = False  # let the script finish once everything is captured
    quiet: bool = False
    force: bool = False  # replace an earlier capture in ``output``

    def __post_init__(self) -> None:
        """Refuse values that no capture can honour."""
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"--steps must be at least 1, not {self.steps}.")
        if self.skip is not None and self.skip < 0:
            raise UsageError(f"--skip cannot be negative ({self.skip}); 0 starts at the first step.")
        if self.step_on not in STEP_SOURCES:
            raise UsageError(f"Invalid --step-on {self.step_on!r}: use one of {', '.join(STEP_SOURCES)}.")
        for name, value in (("max-seconds", self.max_seconds), ("max-mb", self.max_mb)):
            if not value > 0:
                raise UsageError(f"--{name} must be above zero, not {value}.")
