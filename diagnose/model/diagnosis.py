"""What the stages hand on: findings, prescriptions, trials, and the diagnosis that holds them.

Times are nanoseconds (reports show milliseconds); shares are fractions of the step, 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from diagnose.errors import DiagnoseError
from diagnose.model.arrays import Floats, Rows
from diagnose.model.events import Note
from diagnose.model.files import write_file
from diagnose.model.intervals import Intervals
from diagnose.model.limits import Doubt, TrialMethod
from diagnose.model.locations import Example, Where
from diagnose.model.rules import Legend

if TYPE_CHECKING:
    from diagnose.model.charts import (
        CodeTimes,
        FlopUtilisation,
        HostOperator,
        KernelTime,
        Memory,
        MemoryByLine,
        Picture,
        Roofline,
    )
    from diagnose.model.job import Job

__all__ = [
    "MAX_RANGE", "Confidence", "CriticalPath", "CrossCheck", "Diagnosis", "Example", "Facts", "Finding", "Forecast",
    "IgnoredFinding", "Partition", "PathSegment", "PlainSteps", "Prescription", "Promise", "Queue", "RankSummary",
    "Removal", "Renderers", "Source", "Trial", "Verdict", "Waterfall", "Where", "bind_renderers", "middle_ns",
]  # fmt: skip


MAX_RANGE = 4.0  # of the highest end over the lowest one: a wider range is no promise


class PathSegment(NamedTuple):
    """A piece of the critical path of one step: what the step's end waited for; times are ns from the step's start."""

    start_ns: int
    end_ns: int
    category: str  # compute, communication, copy, host, latency
    name: str
    lane: str


class CriticalPath(NamedTuple):
    """What the step consists of when every wait is followed to its reason."""

    shares: Mapping[str, float]  # of the path by category, over the replayed steps; sums to 1
    pieces: tuple[PathSegment, ...] = ()  # of the pictured step, in time order, small ones joined


class Forecast(NamedTuple):
    """The step after some prescriptions, replayed together."""

    ids: tuple[str, ...]  # of the prescriptions applied, in order; () for the step as it is
    title: str  # of the one applied last, or "now"
    step_ns: float
    low_ns: float
    high_ns: float

    @property
    def is_narrow(self) -> bool:
        """Return whether the step can be stated, and not only between what it lies."""
        return self.high_ns <= MAX_RANGE * self.low_ns


class Waterfall(NamedTuple):
    """The best combination, one prescription after the other; the first entry is the step as measured."""

    forecasts: tuple[Forecast, ...]
    bound_by: str  # what binds the step after the last one, as it stands in "is bound by …"
    shares: Mapping[str, float]  # of the critical path then, by category
    combinations: tuple[Forecast, ...] = ()  # of every subset: bit i of the index stands for change i of the chain


def middle_ns(low_ns: float, high_ns: float) -> float:
    """Return the prediction of a range, which is its middle: a card, a bar and a trial name the same number."""
    return (low_ns + high_ns) / 2


class PlainSteps(NamedTuple):
    """Times in ns; medians of the steps around the timing window, and the run's mean step."""

    before_ns: (
        float | None
    )  # right before it; None for fewer than four, not known ones, or where those after it show what it is set against
    recorded_ns: float  # in it, as recorded
    after_ns: float | None  # right after it
    mean_ns: float | None  # of the run, without what recording made longer; None where the device's profiler did more
    num: int  # behind the mean
    agree: bool  # those before and after by their spread, and the recorded ones are not shorter by more than that


class CrossCheck(NamedTuple):
    """One figure beside another tool's; shares are fractions, None where one side has no such figure."""

    measure: str
    ours: float | None
    by_their_definition: float | None  # computed from our events as the other tool defines it
    theirs: float | None
    explanation: str  # of the difference, by definition
    explained: bool = True  # whether our events give the other tool's figure by its definition


Verdict: TypeAlias = Literal["cpu-bound", "kernel-bound", "gaps", "no-gpu"]
Confidence: TypeAlias = Literal["high", "medium", "low"]
Facts: TypeAlias = Mapping[str, object]
Promise: TypeAlias = Literal["identical", "rounding", "reduced", "other", ""]
"""What a change does to the numbers: nothing, another order of roundings, arithmetic of fewer bits, another training;
"" in a report of an earlier version."""

NO_TASKS: Rows = np.empty(0, np.intp)
NO_TASKS.flags.writeable = False


class Removal(NamedTuple):
    """What goes with operators that a step could do without, also where the device hides the host's time for them."""

    host: Intervals  # the host's time
    waits: Rows  # blocking calls, rows of the trace
    tasks: Rows  # of the device, rows of Tasks
    spared_ns: Floats  # of each of these tasks


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that holds the step back."""

    rule: str
    title: str
    lost_ns: float  # per step
    count: int = 0  # occurrences over all steps
    total_ns: int = 0  # over all steps
    median_ns: int = 0  # of one occurrence
    evidence: tuple[str, ...] = ()  # sentences, each with the number it rests on
    examples: tuple[Example, ...] = ()  # the largest, at most three
    where: tuple[Where, ...] = ()  # the most expensive first
    confidence: Confidence = "high"
    facts: Facts = field(default_factory=dict)  # what prescriptions are shaped by
    tasks: Rows = field(default_factory=lambda: NO_TASKS, compare=False, repr=False)  # rows of device Tasks it explains
    operators: tuple[int, ...] = field(default=(), compare=False, repr=False)  # of the data flow, that its title names
    without: Removal | None = field(default=None, compare=False, repr=False)  # where the data flow shows it
    path_share: float | None = None  # share of the critical path that it lies on; None where nothing was replayed
    relief_ns: float | None = None  # what a step without its cause saves; None where that was not replayed
    worth_ns: float = 0.0  # what a step without it saves: findings are ordered by it
    share: float | None = None  # of the run's time, where the finding rests on all of its steps; None: of the step
    is_stated: bool = (
        False  # on the first screen, though what it costs is not known: the script asked for something else
    )
    doubt: str = ""  # what is uncertain where the confidence is low, a clause
    unrecorded_share: float | None = None  # of a step without the profiler, at least; None where it is not most of it

    def share_of(self, step_ns: float) -> float:
        """Return what it costs, as a share of the recorded steps or of the run that it was found in."""
        return self.lost_ns / step_ns if self.share is None else self.share

    @property
    def gain_ns(self) -> float:
        """Return what removing the cause saves a step, as far as that was replayed, else what it costs."""
        return self.lost_ns if self.relief_ns is None else self.relief_ns


class IgnoredFinding(NamedTuple):
    """A finding that the user did not want to see."""

    finding: Finding
    by: Literal["option", "comment"]  # the command or its settings, or a comment in the program


@dataclass(frozen=True, slots=True)
class Prescription:
    """One concrete change."""

    rule: str
    id: str
    title: str  # imperative
    before: str  # code as it stands, or ""
    after: str  # code to paste
    saves_ns: tuple[float, float]  # least and most, per step
    predicted_step_ns: float | None  # None where nothing could be predicted
    safety: str  # "same numbers", or "may change the numbers: ..." with how to check
    promise: Promise = ""
    needs: str = ""
    remedy: str = ""  # dotted name of the module that does it, or ""
    basis: Literal["replay", "bound"] = "bound"  # saves_ns is replayed, or bounded by what the finding lost
    assumes: str = ""  # what the two ends of saves_ns rest on, one sentence
    arguments: Facts = field(default_factory=dict)  # what `diagnose prove` applies it with, such as {"workers": 4}
    edits: tuple[Where, ...] = ()  # the lines of the script to edit, where the capture holds them
    diff: str = ""  # the edit as a unified diff of the script, as git applies it
    apply_with: str = ""  # the command that applies the diff, where it was written to a file
    trial_method: TrialMethod | Literal[""] = ""  # "" in a report of an earlier version
    is_advice: bool = False  # text of the rule: nothing applies it
    records_again: bool = False  # it changes the recording, not the script
    records_more: bool = False  # so that it holds what this one lacks, whatever it is prescribed for
    mean_step_ns: float | None = None  # of the whole run, where saves_ns is a part of that and not of the recorded step


@dataclass(frozen=True, slots=True)
class Trial:
    """A prescription that was run."""

    id: str
    baseline_ms: tuple[float, ...]
    step_ms: tuple[float, ...]
    speed_up: float
    interval: tuple[float, float]
    numerics: Literal["identical", "within", "drifted", "unknown"]
    title: str = ""
    ids: tuple[str, ...] = ()  # of what was applied together; (id,) for one prescription alone
    kind: Literal["single", "combination", "without"] = "single"  # without: the combination less ``id``
    mean_ms: tuple[float, float] | None = None  # baseline, trial: the mean step over whole periods, middle of the runs
    predicted_ms: float | None = None
    noise: float | None = None  # share by which equal runs differ
    peak_bytes: tuple[int, int] | None = None  # baseline, trial
    losses: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())  # baseline, trial; of the same steps
    drift: float | None = None  # median relative distance of the losses, in the run that is furthest away
    worst_drift: float | None = None  # the largest distance of a single loss in that run
    drift_limits: tuple[float, float] | None = None  # what both may be
    grad_norms: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())  # of the first optimizer steps
    grad_drift: float | None = None  # their median relative distance
    skipped_steps: tuple[int, int] | None = None  # by a GradScaler: baseline, trial; None where neither has one
    note: str = ""  # one sentence about it
    failure: str = ""  # why it could not be measured; the times are empty then
    doubt: Doubt = ""  # why the result may be chance

    @property
    def steps_ms(self) -> tuple[float, float] | None:
        """Return the step without and with the change, None where nothing was measured."""
        if self.mean_ms is not None or not self.baseline_ms or not self.step_ms:
            return self.mean_ms
        return float(np.median(self.baseline_ms)), float(np.median(self.step_ms))


class Queue(NamedTuple):
    """The device's queue over the steady steps; depth counts launches that are not finished, a graph's as one."""

    busy_share: float
    idle_share: float
    depth_p50: float  # weighted by time
    depth_p90: float
    empty_share: float  # share of the step with no launch unfinished
    launches_per_step: float
    late_share: float  # share of tasks launched onto an empty device: all before had finished when the launch began
    delay_p50_ns: int  # median launch delay
    busy_depth_p50: float | None = None  # over the time in which the device works; None where launches are not linked
    launch_latency_ns: int | None = None  # median, of launches onto an empty device; None where there are too few


@dataclass(frozen=True, slots=True)
class Partition:
    """Shares of the step that sum to 1."""

    compute: float
    exposed_communication: float
    exposed_copy: float
    idle: float


@dataclass(frozen=True, slots=True)
class Source:
    """Where a diagnosis comes from."""

    path: str
    command: str = ""
    torch: str = ""
    devices: tuple[str, ...] = ()
    world_size: int = 1
    found_steps_by: str = ""  # profiler marks, optimizer, dataloader, annotation, forward, marker, none
    unprofiled_step_ns: tuple[int, ...] = ()
    settled_after: int | None = None  # steps until step times were steady
    samples: Mapping[str, object] = field(default_factory=dict)  # NVML medians and the like
    setup: Mapping[str, object] = field(default_factory=dict)  # what step times depend on; unknown entries are missing
    loading: Mapping[str, object] = field(default_factory=dict)  # what Linux counted of the processes that load
    accelerator: str = ""  # that operators ran on, and whose tasks the file lacks
    recorded_at: str = ""  # when the recorded run began, ISO 8601 in UTC; "" where that is not known
    names_lines: bool = True  # Python frames or samples of the threads were recorded


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank's numbers."""

    rank: int
    verdict: Verdict
    dominant: str | None
    step_ns: float
    partition: Partition | None
    idle_by_cause: Mapping[str, float]
    waits_ns: float | None = None  # per step, for other ranks, hidden by nothing; None where not comparable


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole answer. ``findings`` and ``prescriptions`` are ordered, the most valuable first.

    ``idle_by_cause`` holds shares of the step and sums to ``partition.idle``.
    """

    verdict: Verdict
    headline: str  # one sentence
    dominant: str | None  # the rule of the largest finding, None where nothing is worth naming
    step_ns: float  # mean: the window over the number of steps
    step_times_ns: tuple[int, ...]  # host time of each steady step
    queue: Queue | None  # None without a GPU in the trace
    partition: Partition | None
    idle_by_cause: Mapping[str, float]
    findings: tuple[Finding, ...]
    prescriptions: tuple[Prescription, ...]
    trust: tuple[Note, ...]
    source: Source
    ranks: tuple[RankSummary, ...] = ()
    job: Job | None = None  # how the ranks compare; None where there is one
    trials: tuple[Trial, ...] = ()
    operators: tuple[HostOperator, ...] = ()
    picture: Picture | None = None
    replay_error: float | None = None  # set once savings are replayed
    phases: Mapping[str, float] = field(default_factory=dict)  # share of the run's time in each, largest first
    watched_steps: int = 0  # of the run, recorded or not; 0 where only the recorded ones are known
    host_by_cause: Mapping[str, float] = field(default_factory=dict)  # without a device: shares of the host's time
    record_again: str = ""  # why the file cannot carry an answer: it is cut off, or its times cannot be true
    recorded_step_ns: float = 0.0  # as recorded; all other times are of the step without the profiler
    profiler_overhead: float | None = None  # recorded step over unprofiled step, minus 1; None if that is not known
    plain_steps: PlainSteps | None = None  # without the profiler, around the recorded ones; None where not known
    passes_per_update: int | None = None  # backward passes that add up before each optimizer's call; None: they differ
    cpu_wait: float = 0.0  # share of the watched time in which the training thread waited for a core
    recording_estimate: float = 0.0  # share of the step that it takes the host at most, where it was not measured
    critical_path: CriticalPath | None = None  # None where nothing was replayed
    waterfall: Waterfall | None = None
    roofline: Roofline | None = None  # None for an unknown device, or without shapes
    flops: FlopUtilisation | None = None  # None for an unknown device, or without shapes
    memory: Memory | None = None  # None without memory events
    memory_by_line: MemoryByLine | None = None  # None without a data flow, or if no line is worth a row
    code: CodeTimes | None = None  # by phase, module and function; None where it was not looked for
    kernels: tuple[KernelTime, ...] = ()  # what the device spends its time on, the most expensive first
    kernel_families: Mapping[str, float] = field(default_factory=dict)  # shares of computing time, the largest first
    shown: tuple[str, ...] = ()  # ids of the changes on the first screen, in their order
    summary: tuple[str, ...] = ()  # three lines at most: the queue, the largest cost, the first change
    checked: tuple[str, ...] = ()  # the rules that were applied
    not_checked: Mapping[str, str] = field(default_factory=dict)  # rule: what the recording lacks for it, ", " between
    unseen: Mapping[str, int] = field(default_factory=dict)  # what it lacks that may hide an answer: rules that need it
    legends: Mapping[str, Legend] = field(default_factory=dict)  # label and colour of each cause
    also_possible: tuple[Prescription, ...] = ()  # further changes for the findings, whose gain is not predicted
    to_try: tuple[str, ...] = ()  # ids of further changes that no recording judges and a trial may
    cross_check: tuple[CrossCheck, ...] = ()  # with another tool, where that was asked for
    after: Diagnosis | None = None  # with the proven prescriptions applied together: what binds the step then
    ignored: tuple[IgnoredFinding, ...] = ()  # findings that were left out as asked; they are not among ``findings``
    pages: list[Path] = field(default_factory=list, init=False, repr=False, compare=False)  # that it was written to

    @property
    def steps(self) -> int:
        """Return the number of steady steps behind the numbers."""
        return len(self.step_times_ns)

    def to_html(self, path: str | PathLike[str] | None = None, *, force: bool = False) -> str | Path:
        """Return the HTML report, or with ``path`` write it there, over one with ``force`` only, and return the path.

        Raises:
            OutputError: the file exists already and ``force`` is off, or it cannot be written.
        """
        text = _renderers().html(self)
        if path is None:
            return text
        write_file(path, text, force=force)
        self.pages.append(Path(path))
        return Path(path)

    def to_json(self) -> str:
        """Return the JSON diagnosis of schema version 1."""
        return _renderers().json(self)

    def print(self) -> None:
        """Print the text report to standard output."""
        print(_renderers().text(self))

    def figure(self, name: str) -> Any:
        """Return a figure of plotly: step, queue, waterfall, kernels, ranks, memory or trials.

        Raises:
            InputError: plotly is not installed; the extra `plots` has it.
            UsageError: no figure has this name, or the diagnosis has no data for it.
        """
        return _renderers().figure(self, name)

    def figures(self) -> dict[str, Any]:
        """Return every figure that there is data for, by name; raises as `figure`."""
        return _renderers().figures(self)

    def _repr_html_(self) -> str:
        """Return the report for a notebook: without its charts, in a frame."""
        return _renderers().notebook(self)


class Renderers(NamedTuple):
    """The functions that turn a diagnosis into text; diagnose.api binds them, as this type imports no report."""

    html: Callable[[Diagnosis], str]
    notebook: Callable[[Diagnosis], str]
    json: Callable[[Diagnosis], str]
    text: Callable[[Diagnosis], str]
    figure: Callable[[Diagnosis, str], Any]
    figures: Callable[[Diagnosis], dict[str, Any]]


_bound: list[Renderers] = []


def bind_renderers(renderers: Renderers) -> None:
    """Set what ``to_html``, ``to_json`` and ``print`` of every diagnosis use."""
    _bound[:] = [renderers]


def _renderers() -> Renderers:
    if not _bound:
        raise DiagnoseError("No report is bound to diagnoses; get them through the package diagnose itself.")
    return _bound[0]
