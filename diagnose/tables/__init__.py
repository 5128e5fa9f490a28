"""What two or more rules read of a trace: `stages` computes it in order, and nothing changes it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Mask, Rows, read_only
from diagnose.model.capture import Capture
from diagnose.model.diagnosis import Partition, Queue
from diagnose.model.events import Kind, Trace
from diagnose.model.intervals import Intervals, among, contains
from diagnose.tables import device, host, names
from diagnose.tables.gaps import Causes, Gaps
from diagnose.tables.host import Layers
from diagnose.tables.steps import Steps

if TYPE_CHECKING:
    from diagnose.dataflow import Analyses
    from diagnose.model.charts import Memory
    from diagnose.model.diagnosis import PlainSteps
    from diagnose.model.rules import Cause
    from diagnose.tables.flow import Flow
    from diagnose.tables.growing_calls import GrowingCalls
    from diagnose.tables.op_launches import Chain, MatchedStep, OperatorInputs, WrittenOut
    from diagnose.tables.passes import Links
    from diagnose.tables.program import Program
    from diagnose.tables.python_calls import Issuer
    from diagnose.tables.roofline import Group
    from diagnose.tables.run_steps import GrowingSteps, Recompiling, Stall
    from diagnose.tables.step_calls import StepCalls
    from diagnose.tables.syncs import Frees, FullQueue

__all__ = ["Claim", "Tables"]

Claim: TypeAlias = "Callable[[Tables, Intervals], Intervals]"

T = TypeVar("T")


@dataclass(eq=False, repr=False)  # tables of one trace are compared by identity: arrays have no equality
class Tables:
    """One rank's trace and what is derived from it; each table is computed once, by `stages`, and read-only.

    A table of a later stage is not there for a claim, nor where its stage is not run.
    """

    capture: Capture
    trace: Trace
    analyses: Analyses | None = None  # what the capture's data flow shows

    # The steps and what ran in them
    steps: Steps = field(init=False)
    device_id: int = field(init=False)  # of the busiest device, -1 without one
    tasks: device.Tasks = field(init=False)  # the device's, in the window
    streams: Mapping[int, Rows] = field(init=False)  # the tasks of each, as rows of ``tasks`` in time order
    occupancy: device.Occupancy = field(init=False)  # what covers the window
    launch_threads: tuple[int, ...] = field(init=False)  # that launch the device's tasks
    main: int = field(init=False)  # the thread of the training loop
    threads: tuple[int, ...] = field(init=False)  # whose activity explains idle time: the main one and those
    rows: Mapping[Kind, Rows] = field(init=False)  # of each kind, on these threads
    launch_latency: int | None = field(init=False)  # from launch to task where nothing else is waited for, ns
    gaps: Gaps = field(init=False)  # the idle regions; without a device the whole window
    late_by: int = field(init=False)  # of the device's clock beside the host's, ns
    blocking_calls: Rows = field(init=False)
    freeing_calls: Frees = field(init=False)
    full_queue: FullQueue = field(init=False)  # launches that wait for room in the device's queue

    # The run around them, as far as the capture knows it
    recompiling: Recompiling | None = field(init=False)
    stalls: tuple[Stall, ...] = field(init=False)
    growing_steps: GrowingSteps | None = field(init=False)
    plain_steps: PlainSteps | None = field(init=False)

    # What the host did
    work_layers: dict[int, Layers] = field(init=False)  # operators, annotations and runtime calls by nesting
    frame_layers: dict[int, Layers] = field(init=False)  # Python frames; empty where stacks were not recorded
    in_ops: Intervals = field(init=False)  # one of the threads was inside an operator or a runtime call
    updates: Intervals = field(init=False)
    called_by_python: Rows = field(init=False)
    open_frames: frozenset[int] = field(init=False)
    known_kernel_calls: Rows = field(init=False)
    runs_no_python: bool = field(init=False)
    computing_operators: Rows = field(init=False)
    silences: Mapping[int, tuple[Intervals, Rows]] = field(init=False)
    host_gaps: Intervals = field(init=False)
    python_gaps: Intervals = field(init=False)
    flow: Flow | None = field(init=False)

    # What idle time is explained by
    named: Tables = field(init=False)  # of the attribution window, which has names and lines; else these
    launches_without_task: Rows = field(init=False)
    host_backend: Intervals = field(init=False)
    anomaly_checks: Rows = field(init=False)
    silent_operators: Sequence[tuple[Intervals, Rows]] = field(init=False)
    filled_by_operators: Intervals = field(init=False)
    issuer: Issuer | None = field(init=False)
    issued: Intervals = field(init=False)
    queue: Queue = field(init=False)
    partition: Partition = field(init=False)
    claims: tuple[tuple[str, Claim], ...] = field(init=False)  # of the idle rules in order; the last takes what is left
    kinds: Mapping[str, Cause] = field(init=False)  # what the time of each of these rules is
    causes: Causes = field(init=False)  # one for every idle nanosecond, or of the training thread without a device

    # What rules tell about it
    step_calls: StepCalls = field(init=False)
    links: Links = field(init=False)
    late_samples: Mask = field(init=False)
    sampled_lines: tuple[Ints, Rows] = field(init=False)
    sampled_files: Mapping[str, set[str]] = field(init=False)
    program: Program = field(init=False)
    outermost_by_step: list[Rows] = field(init=False)
    matched_steps: list[MatchedStep] = field(init=False)
    growing_calls: GrowingCalls | None = field(init=False)
    operators: Rows = field(init=False)
    operator_inputs: OperatorInputs = field(init=False)
    graph_nodes: Mask = field(init=False)
    graphed_updates: Mask = field(init=False)
    task_classes: npt.NDArray[np.int8] = field(init=False)
    roofline_groups: list[Group] = field(init=False)
    small_collectives: Rows = field(init=False)
    sync_free: Intervals = field(init=False)  # what a CUDA graph can hold

    # What several rules search for
    attention: list[WrittenOut] = field(init=False)
    chains: list[Chain] = field(init=False)
    memory: Memory | None = field(init=False)

    def __setattr__(self, name: str, value: object) -> None:
        """Keep a table, with its columns read-only; none is replaced."""
        if name in vars(self):
            raise AttributeError(f"the table {name} is there already")
        vars(self)[name] = read_only(value)

    def host_rows(self, *kinds: Kind) -> Rows:
        """Return the rows of the given kinds on the main and launching threads."""
        if len(kinds) == 1:
            return self.rows[kinds[0]]
        return self._on_threads(names.rows_of(self.trace, *kinds))

    def calls(self, pattern: names.Pattern, *kinds: Kind) -> Rows:
        """Return the rows on the main and launching threads whose name the pattern finds."""
        return self._on_threads(names.matching(self.trace, kinds or (Kind.RUNTIME,), pattern))

    def _on_threads(self, rows: Rows) -> Rows:
        threads = self.trace.events.thread
        mine: Rows = rows[among(threads[rows], np.array(self.threads, threads.dtype))]
        return mine

    _cache: dict[object, object] = field(init=False, default_factory=dict)

    def cached(self, key: object, make: Callable[[], T]) -> T:
        """Return what ``make`` returned when ``key`` was first requested: for packages above this one."""
        if key not in self._cache:
            self._cache[key] = read_only(make())
        return cast("T", self._cache[key])

    def tasks_matching(self, pattern: names.Pattern, among: Rows | None = None) -> Mask:
        """Return which tasks, or which ``among`` them, have a name that the pattern finds.

        Each distinct name is searched once.
        """
        ids = self.trace.events.name[self.tasks.row if among is None else self.tasks.row[among]]
        found = np.zeros(len(self.trace.names) + 1, bool)
        found[ids] = True
        for name in np.flatnonzero(found).tolist():
            found[name] = pattern.search(self.trace.names[name][: names.NAME_PART]) is not None
        mask: Mask = found[ids]
        return mask

    def in_window(self, rows: Rows) -> Rows:
        """Return the rows whose events begin in the window."""
        start, end = self.steps.window
        began = self.trace.events.start[rows]
        mine: Rows = rows[(began >= start) & (began < end)]
        return mine

    def launched_in(self, inside: Intervals) -> Mask:
        """Return which tasks were launched at these times."""
        launch = self.tasks.launch
        found: Mask = (launch >= 0) & contains(inside, self.trace.events.start[np.maximum(launch, 0)])
        return found

    def covering(self, rows: Rows) -> Intervals:
        """Return the time that the given events cover."""
        return host.intervals_of(self.trace, rows)

    def name(self, row: int) -> str:
        """Return the name of an event."""
        return self.trace.names[int(self.trace.events.name[row])]
