"""What a capture measures, and the callbacks it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.capture.options import QUICK_S
from diagnose.capture.record.device_clock import DeviceClock
from diagnose.capture.record.folder import StepState
from diagnose.capture.record.window import WindowKind
from diagnose.model.records import LoadedRecord

__all__ = ["Measurements", "PlanHooks"]


@dataclass
class Measurements:
    """What the plan has measured so far; times are the host's, ns per step, of consecutive steps."""

    converged_after: int | None = None  # steps until step times were steady
    unprofiled: list[int] = field(default_factory=list)
    timing: list[int] = field(default_factory=list)
    attribution: list[int] = field(default_factory=list)
    first: dict[str, int] = field(default_factory=dict)  # number of the first step of each of these lists
    clock: DeviceClock = field(default_factory=DeviceClock)
    mb: dict[WindowKind, float] = field(default_factory=dict)  # of JSON text
    write_s_per_mb: float = 0.0  # what stopping the profiler and writing took
    dataflow_file: str = ""
    loaded: LoadedRecord = field(default_factory=LoadedRecord)  # samples of the training loader, loaded again
    files: dict[WindowKind, str] = field(default_factory=dict)
    flags: dict[str, object] = field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)  # wall clock (unix ns) of each part
    stack_ns: int = 0  # in the attribution window
    notes: list[str] = field(default_factory=list)

    def step_ns(self, part: str) -> list[int]:
        """Return the steps of "unprofiled", "light" or "attribution", by the device's clock where it is known."""
        host = {"unprofiled": self.unprofiled, "light": self.timing, "attribution": self.attribution}[part]
        return self.clock.times(self.first.get(part, 0), host)


@dataclass(frozen=True)
class PlanHooks:
    """Callbacks and settings that the plan needs from the session."""

    folder: Path  # where to write
    prefix: str  # of file names: "rank0"
    num_ranks: int
    report: Callable[[str], None]
    other_active: Callable[[], bool]  # whether the script's own profiler is at work
    undecided: Callable[[], bool]  # whether what a step is may still change
    compiled: Callable[[], int]  # how many graphs torch.compile has made so far
    look: Callable[[], None]  # called when a bound may be reached at another time than before
    converged: Callable[[], None]  # called once the wait is over: what a step is stays as it is from here on
    sampling: Callable[[bool], None]  # start or stop the sampler
    join_wait: Callable[
        [Callable[[], None]], str
    ]  # the class of the loader's iterator that is waited for, "" for none;
    # what it is given is called after that wait
    wrote: Callable[[], object]  # called after each window was written
    stepped: Callable[[int, StepState], None]  # called after each step: ns that it took, what was recorded of it
    training_loader: Callable[[], object] = lambda: None  # the loader that steps take their batches from, if any
    quick_s: float = QUICK_S  # for a quick recording
