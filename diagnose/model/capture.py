"""What a capture folder holds, as types: the traces of one rank and what was measured beside them.

A folder is written by ``diagnose trace`` and looks like this (one set of files a rank)::

    capture.json                            one rank; capture.rank<r>.json each where there are several
    rank0.light.pt.trace.json.gz            no stacks, no shapes: the timing claims come from it
    rank0.attribution.pt.trace.json.gz      stacks, shapes, syncs, GC: the names and lines come from it
    rank0.samples.json.gz                   the sampler's rows (see Samples)
    rank0.lines.json.gz                     the text of the source lines that the sampler saw, and the loops around them
    rank0.steps.json.gz                     a row for every step of the run (see RunSteps)
    rank0.dataflow.json.gz                  two steps as a program (see Dataflow)
    rank0.long.dataflow.json.gz             the same of a step that is long now and then, after a usual one

``capture.json`` is CaptureInfo field by field. Files of anyone else's profiler need none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from diagnose.errors import InputError
from diagnose.model.arrays import Ints
from diagnose.model.assignments import StoredSource
from diagnose.model.dataflow import Dataflow
from diagnose.model.events import Trace
from diagnose.model.records import (
    MAX_INT,
    AllocatorRecord,
    CallRecord,
    CompiledRecord,
    Count,
    DequeRecord,
    FileName,
    FlagsRecord,
    GpuRecord,
    HookRecord,
    HostRecord,
    LoadedRecord,
    LoaderRecord,
    Milliseconds,
    NvmlRecord,
    OptimizerRecord,
    SamplerRecord,
    SaveRecord,
    UnreadRecord,
    decode,
)

CAPTURE_SCHEMA = 1
MAX_INFO_BYTES = 256 << 20  # decompressed: at most twenty thousand rows of a dozen series for each GPU
MAX_WORLD_SIZE = 1_000_000
REMEDY = "Trace the script again."


class CaptureInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The content of capture.json."""

    schema_version: Annotated[int, Meta(ge=1)] = CAPTURE_SCHEMA
    run_id: str = ""  # the same in every rank of one run
    tool_version: str = ""
    command: tuple[str, ...] = ()  # the script and its arguments
    cwd: str = ""
    started_at: str = ""  # ISO 8601, UTC
    python: str = ""
    torch: str = ""
    cuda: str = ""
    rank: Annotated[int, Meta(ge=0, le=MAX_WORLD_SIZE - 1)] = 0
    world_size: Annotated[int, Meta(ge=1, le=MAX_WORLD_SIZE)] = 1
    gpus: tuple[GpuRecord, ...] = ()
    light_file: FileName = ""  # "" where the window was not reached
    attribution_file: FileName = ""
    samples_file: FileName = ""
    lines_file: FileName = ""
    steps_file: FileName = ""
    dataflow_file: FileName = ""
    long_step_file: FileName = ""
    long_step_every: Count = 0  # steps from one such step to the next
    flags: FlagsRecord = FlagsRecord()
    found_steps_by: str = ""  # optimizer, dataloader, forward, marker
    events_per_step: Annotated[int, Meta(ge=1, le=MAX_INT)] = 1  # marker events that make up one step
    settled_after: Count | None = None  # steps until step times were steady; None: they never were
    unprofiled_ms: tuple[Milliseconds, ...] = ()  # step times with no profiler running, steady ones only
    light_ms: tuple[Milliseconds, ...] = ()
    attribution_ms: tuple[Milliseconds, ...] = ()
    sampler: SamplerRecord = SamplerRecord()
    nvml: NvmlRecord = NvmlRecord()
    memory: AllocatorRecord = AllocatorRecord()
    loader: LoaderRecord = LoaderRecord()
    optimizer: OptimizerRecord = OptimizerRecord()
    loaded: LoadedRecord = LoadedRecord()
    compiled: CompiledRecord = CompiledRecord()
    host: HostRecord = HostRecord()
    wide: tuple[
        CallRecord, ...
    ] = ()  # what makes 64-bit floats for the step: of a buffer by its name, of samples by its text
    saves: tuple[SaveRecord, ...] = ()
    hooks: tuple[HookRecord, ...] = ()
    unread: tuple[UnreadRecord, ...] = ()
    stack_ns: Count = 0  # what anomaly detection took to record the stack of one operator; 0 where it was off
    notes: tuple[str, ...] = ()  # sentences for `trust`
    ended: str = ""  # stopped (early, on purpose), finished, raised, interrupted, killed
    exit_code: Annotated[int, Meta(ge=-(2**31), le=2**32)] | None = None

    def to_json(self) -> dict[str, object]:
        """Return the JSON object."""
        data: dict[str, object] = msgspec.to_builtins(self)
        return data

    @classmethod
    def from_json(cls, text: bytes | str, *, source: str) -> CaptureInfo:
        """Read the JSON text; ``source`` names the file in errors. Unknown fields are ignored, missing ones default.

        Raises:
            InputError: the text is not a capture description of a known schema.
        """
        version = decode(text, _Version, source=source, remedy=REMEDY).schema_version
        if version is msgspec.UNSET:
            raise InputError(f"{source} is not a capture description: it has no schema_version. {REMEDY}")
        if version > CAPTURE_SCHEMA:
            raise InputError(f"{source} was written by a newer diagnose (schema {version}); please upgrade.")
        info = decode(text, cls, source=source, remedy=REMEDY)
        if info.rank >= info.world_size:
            raise InputError(
                f"{source} cannot be used: its rank {info.rank} is not below its world_size {info.world_size}. {REMEDY}"
            )
        return info


class _Version(msgspec.Struct):
    schema_version: Annotated[int, Meta(ge=1, le=MAX_INT)] | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class Samples:
    """What the sampler saw of the thread that runs the script, one row every few milliseconds.

    In the file: ``{"places": [[file, line, function], …], "time_ns": […], "place": […], "running": […],
    "gc": [[begin, end], …]}``.
    """

    time_ns: Ints  # wall clock, unix ns
    place: npt.NDArray[np.int32]  # row of places: the innermost line outside torch and the standard library
    running: npt.NDArray[np.int8]  # 1 on a CPU, 0 waiting, -1 unknown
    places: tuple[tuple[str, int, str], ...]  # file, line, function
    gc_runs: tuple[tuple[int, int], ...] = ()  # begin and end of garbage collections on that thread, unix ns


@dataclass(frozen=True, slots=True)
class RunSteps:
    """Every step of the run, recorded or not, and what the stepping thread did where no timing window was open.

    In the file: ``{"began_ns": […], "took_ns": […], "device_ns": […], "state": […], "phases": {name: […], …},
    "paths": [[[file, line, function], …], …], "sampled_ns": […], "path": […]}``.
    """

    began_ns: Ints  # wall clock, unix ns
    took_ns: Ints  # the host's time, in which it may only have queued the step's work
    state: npt.NDArray[np.int8]  # row of capture.record.folder.STATES: plain, light, attribution, edge
    phases: Mapping[str, Ints]  # fields of capture.steps.phases.PhaseTimes that ever were above 0
    paths: tuple[tuple[tuple[str, int, str], ...], ...] = ()  # file, line, function; innermost first
    sampled_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    path: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))  # row of paths
    device_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # by events in its queue; 0: not known

    @property
    def num(self) -> int:
        """Return the number of steps."""
        return len(self.took_ns)

    @property
    def step_ns(self) -> Ints:
        """Return what each step took: on the device where that is known, else on the host."""
        return np.where(self.device_ns > 0, self.device_ns, self.took_ns) if len(self.device_ns) else self.took_ns

    def phase(self, name: str) -> Ints:
        """Return a column of ``phases``, zeros where it never was above 0."""
        return self.phases.get(name, np.zeros(self.num, np.int64))


Loops: TypeAlias = tuple[tuple[int, int], ...]  # the first and last line of each `for` and `while`


@dataclass(frozen=True, slots=True)
class Capture:
    """One rank's evidence: ``trace`` carries the timing, ``attribution`` (if any) the names and lines."""

    trace: Trace
    attribution: Trace | None = None
    info: CaptureInfo | None = None
    samples: Samples | None = None
    lines: Mapping[tuple[str, int], str] = field(default_factory=dict)  # source text of a file's line, as recorded
    run: RunSteps | None = None
    recorded_step_ns: float = 0.0  # as recorded, if the trace was scaled to the step without the profiler
    event_cost_ns: float = 0.0  # of recording an event, where that was taken out of the trace
    event_cost_error_ns: float = 0.0  # by which it may be less: the steps without it would be hardly longer
    unmoved_samples: Samples | None = None  # at the times of the recording, where ``samples`` were moved with the trace
    loops: Mapping[str, Loops] = field(default_factory=dict)  # of a file: those around the lines, as recorded
    functions: Mapping[str, Loops] = field(default_factory=dict)  # of a file: the same of the functions around them
    bound: Mapping[tuple[str, int], tuple[str, ...]] = field(
        default_factory=dict
    )  # names that a loop or function binds
    draws: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of a file: where samples draw at random
    seeded: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of a file: draws by nothing but a seed
    deques: Mapping[str, tuple[DequeRecord, ...]] = field(default_factory=dict)  # of a file: where they are indexed
    sources: Mapping[str, StoredSource] = field(default_factory=dict)  # of a file: the functions around those lines
    dataflow: Dataflow | None = None
    long_step: Dataflow | None = None  # a step that is long now and then, after a usual one

    @property
    def known(self) -> CaptureInfo:
        """Return what the capture noted; of a trace without one nothing is known."""
        return self.info or CaptureInfo()

    @property
    def run_samples(self) -> Samples | None:
        """Return the sampler's rows at the times that the steps of the run have, which are those of the recording."""
        return self.unmoved_samples or self.samples
