"""What a capture measures, and the callbacks it needs."""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnose.capture.host.turns import TurnCount
from diagnose.capture.record.folder import StepState
from diagnose.capture.record.window import WindowKind
from diagnose.model.records import HostRecord, LoadedRecord, UnreadRecord

# Times steps between events in the device's queue: the host may be many steps ahead of what the device works on.
#
# Where a script never waits for its device, a step takes the host as long as queueing it, until the queue is full.
# Steps of 14 ms were found to take the host 3.5 ms for the first fifty of them.


class DeviceClock:
    """Puts an event into the queue at every step boundary; nothing waits for it while steps are timed.

    Only CUDA and HIP have such events here; without them, and for steps inside the capture of a graph, no time is
    known.
    """

    def __init__(self) -> None:
        self.step_ns: dict[int, int] = {}  # by number of the step, for those that the device has ended
        self._waiting: deque[tuple[int, Any]] = deque()  # numbers of steps with the event after each, oldest first

    def mark(self, number: int) -> None:
        """State that the host has queued all of step ``number``; the first call marks where the next one begins."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
            return
        try:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._waiting.append((number, event))
            self._collect()
        except RuntimeError:  # the device's own error is the script's to meet
            self._waiting.clear()

    def finish(self, patience_s: float = 2.0) -> None:
        """Wait at most so long for the steps that the device still works on."""
        ends = time.monotonic() + patience_s
        try:
            while len(self._waiting) > 1 and time.monotonic() < ends:
                self._collect()
                time.sleep(0.005)
        except RuntimeError:
            self._waiting.clear()

    @property
    def recent_ns(self) -> float | None:
        """Return the median of the latest steps that the device has ended, None before the first."""
        latest = list(itertools.islice(reversed(self.step_ns.values()), 16))
        return statistics.median(latest) if latest else None

    def times(self, first: int, host_ns: Sequence[int]) -> list[int]:
        """Return the times of steps from number ``first`` on, the host's where the device's is not known."""
        return [self.step_ns.get(first + i, host) for i, host in enumerate(host_ns)]

    def _collect(self) -> None:
        while len(self._waiting) > 1 and self._waiting[1][1].query():
            (number, begin), (following, end) = self._waiting.popleft(), self._waiting[0]
            if following == number + 1:
                self.step_ns[following] = round(begin.elapsed_time(end) * 1e6)


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
    long_step_file: str = ""  # the same of a step that is long now and then
    long_step_every: int = 0  # steps from one to the next
    dataflow_lines: tuple[tuple[str, int], ...] = ()  # files and lines of the user's that call its operators
    wide_buffers: dict[str, tuple[str, int]] = field(default_factory=dict)  # of 64-bit floats: where their class begins
    loaded: LoadedRecord = field(default_factory=LoadedRecord)  # samples of the training loader, loaded again
    host: HostRecord = field(default_factory=HostRecord)  # calls of host code on hot lines
    unread: tuple[UnreadRecord, ...] = ()  # what is made more often than it is read
    files: dict[WindowKind, str] = field(default_factory=dict)
    flags: dict[str, object] = field(default_factory=dict)
    stack_ns: int = 0  # in the attribution window
    notes: list[str] = field(default_factory=list)

    def of(self, kind: WindowKind) -> list[int]:
        """Return the steps of a window."""
        return self.timing if kind == "light" else self.attribution

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
    wrote: Callable[[], object]  # called after each window was written
    stepped: Callable[[int, StepState], None]  # called after each step: ns that it took, what was recorded of it
    training_loader: Callable[[], object] = lambda: None  # the loader that steps take their batches from, if any
    turns: Callable[[], TurnCount | None] = lambda: None  # what counts how often results are read
    hot_lines: Callable[[], Sequence[tuple[str, int]]] = tuple  # files and lines of the user's that samples are at most
