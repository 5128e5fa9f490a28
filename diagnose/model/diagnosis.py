"""What the stages hand on: findings, prescriptions, trials, and the diagnosis that holds them.

Times are nanoseconds (reports show milliseconds); shares are fractions of the step, 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from diagnose.errors import DiagnoseError
from diagnose.model.arrays import Rows
from diagnose.model.events import Note
from diagnose.model.files import write_file
from diagnose.model.frozen import NamedTuple, dataclass
from diagnose.model.rules import Legend
from diagnose.text.patterns import lazy_pattern

if TYPE_CHECKING:
    from diagnose.model.charts import CodeTimes, FlopUtilisation, HostOperator, KernelTime, Memory, Picture, Roofline
    from diagnose.model.step_memory import MemoryByLine

__all__ = [
    "FRAME",
    "HOW_TRIED",
    "MAX_RANGE",
    "NOTHING_CERTAIN",
    "AlignedCollective",
    "AlignedRank",
    "AlignedStep",
    "CollectiveSummary",
    "Confidence",
    "CriticalPath",
    "CrossCheck",
    "Diagnosis",
    "Example",
    "Facts",
    "Finding",
    "Forecast",
    "IgnoredFinding",
    "Job",
    "Partition",
    "PathSegment",
    "PlainSteps",
    "Prescription",
    "Promise",
    "Queue",
    "RankRow",
    "RankSummary",
    "Renderers",
    "SlowGroup",
    "Source",
    "Trial",
    "TrialMethod",
    "Verdict",
    "Waterfall",
    "Where",
    "bind_renderers",
    "middle_ns",
    "shows_no_difference",
]

# What the ranks of a job show together, as reports need it. Times are ns; ranks are their numbers in the job.

PURPOSES: Final = (
    "ddp-bucket",
    "fsdp-gather",
    "fsdp-scatter",
    "tensor-parallel",
    "expert-parallel",
    "context-parallel",
    "buffer-broadcast",
    "all-to-all",
    "pipeline",
)
"""What a collective may serve."""


@dataclass(frozen=True, slots=True)
class CollectiveSummary:
    """Collectives of one kind, in all groups that do the same; means over ranks."""

    name: str
    purpose: str  # of PURPOSES, "" where nothing shows it
    group_use: str  # the group's description, "" where none is recorded
    group_size: int
    num_groups: int
    num_bytes: int  # of one rank; -1: not recorded
    dtype: str
    per_step: float  # how many on each rank
    waiting_ns: float  # of each step: inside for longer than the rank that came last
    exposed_waiting_ns: float  # of it what nothing hides
    transfer_ns: float  # of one: what the rank that came last was inside for
    hidden_share: float  # of the time of all, what computation covers
    algorithm_gbps: float  # size of the whole operation by its transfer, 1e9 bytes a second; 0: not known
    bus_gbps: float  # times what a link carries of it
    peak_gbps: float = 0.0  # of the links within a host, where all members are on one; 0: not known


@dataclass(frozen=True, slots=True)
class SlowGroup:
    """A process group whose collectives take longer than the same in the other groups."""

    members: tuple[int, ...]
    use: str
    num_others: int
    ratio: float
    more_ns: float  # a step
    bus_gbps: float  # 0: not known
    others_gbps: float  # their median


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank in the tables of a job."""

    rank: int
    late_ns: float | None  # median over the steps: own time less that of its equals; None: not compared
    by_step_ns: tuple[float | None, ...]  # the same for each step: a row of the heat map
    blame_share: float  # of all waiting, what was for this rank
    begins_ns: float  # how much later than the others' median it begins the first step
    arrivals_ns: tuple[
        float | None, ...
    ] = ()  # before the last rank, in each of Job.arrivals; None: does not take part
    host: str = ""


@dataclass(frozen=True, slots=True)
class AlignedCollective:
    """What one rank has of a collective, on the clock of an ``AlignedStep``."""

    name: str  # its purpose, where that is known
    start_ns: float
    waiting_ns: float  # at first: inside for longer than the rank that came last
    transfer_ns: float


@dataclass(frozen=True, slots=True)
class AlignedRank:
    """One rank in an ``AlignedStep``."""

    rank: int
    part: str  # late, slowest, median or fastest
    begin_ns: float  # of the step, on the host
    end_ns: float
    causes: tuple[tuple[str, float], ...] = ()  # what it loses most time to up to its last collective, ns
    collectives: tuple[AlignedCollective, ...] = ()  # that were matched with other ranks', in the order of their starts
    num_collectives: int = 0  # of these only the longest are kept where there are very many


@dataclass(frozen=True, slots=True)
class AlignedStep:
    """One step of a few ranks on one clock; its zero is the first thing that any of them does in it."""

    step: int  # its number
    ranks: tuple[AlignedRank, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """How the ranks compare; ``rows`` begin with the worst rank, and hold the late ones in any case."""

    num_ranks: int  # that were compared
    num_collectives: int  # matched
    residual_ns: float  # median distance of the ends of one collective, clocks laid over each other
    steps: tuple[int, ...]  # their numbers: the columns of the heat map
    rows: tuple[RankRow, ...] = ()
    arrivals: tuple[str, ...] = ()  # the collectives of the middle step that arrivals_ns are of, in their order
    late_ranks: tuple[int, ...] = ()  # for which the others wait
    late_ns: float = 0.0
    saved_ns: float = 0.0  # what a step is shorter where they come when the next latest does
    cause: str = ""  # a rule, a phase of computing, slower-device, -host, -rank or -kernel, more-work; "": not known
    cause_ns: float = 0.0  # more of it a step than on the equals
    cause_share: float = 0.0  # of the lateness
    ratio: float = 1.0  # by which everything is slower
    taking_turns: tuple[int, ...] = ()  # ranks that are late in turns
    begins_late: int | None = None  # for whose late begin the others wait in the first collective
    begins_late_ns: float = 0.0
    first_share: float = 0.0  # of all waiting, in the first collective of the window
    slow_group: SlowGroup | None = None
    collectives: tuple[CollectiveSummary, ...] = ()
    differences: tuple[tuple[str, float], ...] = ()  # cause, ns a step more than the equals; the largest first
    num_rows: int = 0  # that there would be of all ranks: more than ``rows`` where these are the worst only
    aligned: AlignedStep | None = None  # a middle step of the late rank, or the slowest, the median and the fastest
    num_late: int = 0  # steps in which the latest of late_ranks is late
    num_unmatched: int = 0  # collectives that could not be compared: who is late in them is not known


# What a replay shows: the critical path of the steps, and what they would take after changes. Times in ns.

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


# Step times without the profiler, right before and right after the recorded steps.


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


# One figure of a diagnosis beside that of another tool.


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """One figure beside another tool's; shares are fractions, None where one side has no such figure."""

    measure: str
    ours: float | None
    by_their_definition: float | None  # computed from our events as the other tool defines it
    theirs: float | None
    explanation: str  # of the difference, by definition
    explained: bool = True  # whether our events give the other tool's figure by its definition


# How a trial makes a change, and the words for it: the same on a change's page, in a report and in the docs.

NOTHING_CERTAIN = "so nothing is certain"
"""What the note of a trial has whose runs cannot be compared with how far equal runs differ."""

TrialMethod: TypeAlias = Literal["patch", "edited copy", "by hand"]
"""How a trial makes a change: from outside, in the text of the script that it runs, or not at all."""

HOW_TRIED: Mapping[TrialMethod, str] = {
    "patch": "prove applies it to the unmodified script",
    "edited copy": "prove makes it in the text of a copy of the script",
    "by hand": "Made by hand",
}


def shows_no_difference(trial: Trial) -> bool:
    """Return whether the runs show that the change makes no difference worth having."""
    from diagnose.model.statistics import is_even  # with numpy, which the process of a trial is not to import

    return is_even(trial.interval) and NOTHING_CERTAIN not in trial.note


# Places in the user's program, and single occurrences of a finding with what stood around them.

FRAME = lazy_pattern(r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<function>.+)$")
"""A Python frame as the profiler writes it, with the first line of its function."""


@dataclass(frozen=True, slots=True)
class Where:
    """The place in the user's program; each field None where the trace does not show it.

    It is the innermost frame of the user's own files, with its line; ``library`` is what a library or generated code
    runs inside it. Without such a frame the place is the operator.
    """

    file: str | None = None
    line: int | None = None
    function: str | None = None
    op: str | None = None  # the outermost operator or annotation, such as aten::item
    stack: tuple[str, ...] = ()  # innermost first, "file(line): function" or an op's name
    code: str | None = None  # the text of the line, where the capture holds it
    library: str | None = field(default=None, compare=False)  # "file:line in function" that it ran inside the line
    last_line: int | None = None  # of the loop or function that begins at the line, where the place is all of it
    caller: Literal["", "module", "hook"] = field(default="", compare=False)  # what called it, as far as it matters


@dataclass(frozen=True, slots=True)
class Example:
    """One occurrence of a finding, with what stood around it."""

    step: int
    start_ns: int  # from the beginning of its step
    lost_ns: int
    before: str  # the device task before, or ""
    after: str  # the device task after, or ""
    host: str  # what the launching thread did meanwhile
    where: Where = Where()


Verdict: TypeAlias = Literal["cpu-bound", "kernel-bound", "gaps", "no-gpu"]
Confidence: TypeAlias = Literal["high", "medium", "low"]
Facts: TypeAlias = Mapping[str, object]
Promise: TypeAlias = Literal["identical", "rounding", "reduced", "other", ""]
"""What a change does to the numbers: nothing, another order of roundings, arithmetic of fewer bits, another training;
"" in a report of an earlier version."""

NO_TASKS: Rows = np.empty(0, np.intp)
NO_TASKS.flags.writeable = False


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
    path_share: float | None = None  # share of the critical path that it lies on; None where nothing was replayed
    relief_ns: float | None = None  # what a step without its cause saves; None where that was not replayed
    worth_ns: float = 0.0  # what a step without it saves: findings are ordered by it
    share: float | None = None  # of the run's time, where the finding rests on all of its steps; None: of the step
    unrecorded_share: float | None = None  # of a step without the profiler, at least; None where it is not most of it

    def share_of(self, step_ns: float) -> float:
        """Return what it costs, as a share of the recorded steps or of the run that it was found in."""
        return self.lost_ns / step_ns if self.share is None else self.share

    @property
    def gain_ns(self) -> float:
        """Return what removing the cause saves a step, as far as that was replayed, else what it costs."""
        return self.lost_ns if self.relief_ns is None else self.relief_ns


@dataclass(frozen=True, slots=True)
class IgnoredFinding:
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

    @property
    def steps_ms(self) -> tuple[float, float] | None:
        """Return the step without and with the change, None where nothing was measured."""
        if self.mean_ms is not None or not self.baseline_ms or not self.step_ms:
            return self.mean_ms
        return float(np.median(self.baseline_ms)), float(np.median(self.step_ms))


@dataclass(frozen=True, slots=True)
class Queue:
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

    def _repr_html_(self) -> str:
        """Return the report for a notebook: without its charts, in a frame."""
        return _renderers().notebook(self)


class Renderers(NamedTuple):
    """The functions that turn a diagnosis into text; diagnose.api binds them, as this type imports no report."""

    html: Callable[[Diagnosis], str]
    notebook: Callable[[Diagnosis], str]
    json: Callable[[Diagnosis], str]
    text: Callable[[Diagnosis], str]


_bound: list[Renderers] = []


def bind_renderers(renderers: Renderers) -> None:
    """Set what ``to_html``, ``to_json`` and ``print`` of every diagnosis use."""
    _bound[:] = [renderers]


def _renderers() -> Renderers:
    if not _bound:
        raise DiagnoseError("No report is bound to diagnoses; get them through the package diagnose itself.")
    return _bound[0]
