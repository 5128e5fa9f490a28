"""What a capture folder holds, as types: the traces of one rank and what was measured beside them.

A folder is written by ``diagnose trace`` and looks like this (one set of files a rank)::

    capture.json                            one rank; capture.rank<r>.json each where there are several
    rank0.light.pt.trace.json.gz            no stacks, no shapes: the timing claims come from it
    rank0.attribution.pt.trace.json.gz      stacks, shapes, syncs, GC: the names and lines come from it
    rank0.samples.json.gz                   the sampler's rows (see Samples)
    rank0.lines.json.gz                     the text of the source lines that the sampler saw, and the loops around them
    rank0.steps.json.gz                     a row for every step of the run (see RunSteps)
    rank0.dataflow.json.gz                  two steps as a program (see Dataflow)

``capture.json`` is CaptureInfo field by field. Files of anyone else's profiler need none of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from diagnose.errors import InputError, UsageError
from diagnose.model.arrays import Ints
from diagnose.model.dataflow import Dataflow
from diagnose.model.events import Trace
from diagnose.model.frozen import NamedTuple, dataclass
from diagnose.model.loaded import LoadedRecord
from diagnose.model.records import (
    MAX_INT,
    AllocatorRecord,
    Count,
    FileName,
    FlagsRecord,
    GpuRecord,
    LoaderRecord,
    LookupRecord,
    Milliseconds,
    NvmlRecord,
    OptimizerRecord,
    SamplerRecord,
    decode,
)
from diagnose.text.patterns import lazy_pattern

__all__ = [
    "CAPTURE_SCHEMA",
    "JOB_VARIABLES",
    "MAX_INFO_BYTES",
    "RECEIVED_FILE",
    "REMEDY",
    "Capture",
    "CaptureInfo",
    "Launched",
    "Loops",
    "OtherThread",
    "RunSteps",
    "Samples",
    "SeenAt",
    "accelerator_of",
    "cores_of_rank",
    "launched",
    "unrecorded_note",
    "usable_cores",
]

# Accelerators other than those of CUDA and ROCm: by which names traces and torch show them, and what is known of them.
#
# Names follow the exporters' own sources: torch_npu's runtime calls ("AscendCL@aclrtLaunchKernel"), the operators of
# habana_frameworks ("hpu::"), of torch's MPS backend, torch_mlu's calls ("cnInvokeKernel"), and the runtimes of
# Intel's and Meta's devices in Kineto.

NAMES = {
    "xpu": "Intel XPU",
    "mps": "Apple MPS",
    "hpu": "Gaudi HPU",
    "npu": "Ascend NPU",
    "mlu": "Cambricon MLU",
    "mtia": "MTIA",
    "xla": "XLA",
}
_SHOWN = {
    "npu": lazy_pattern(r"^(npu::|torch_npu|AscendCL@|aclnn|aclrt)"),
    "hpu": lazy_pattern(r"^(hpu::|habana|synLaunch)"),
    "mps": lazy_pattern(r"^aten::_?mps_|MPSGraph"),
    "xpu": lazy_pattern(r"^(xpu::|urEnqueue|zeCommandList|piEnqueue)"),
    "mlu": lazy_pattern(r"^(cnInvokeKernel|cnnl[A-Z]|cnrt[A-Z])"),
    "mtia": lazy_pattern(r"^(mtia::|mtia_|runFunction - )"),
    "xla": lazy_pattern(r"^(xla::|XLA)"),
}
ON_CPU = frozenset({"cpu", "meta"})


def accelerator_of(names: Iterable[str]) -> str:
    """Return the accelerator that names of operators and runtime calls show, "" where they show none."""
    for name in names:
        for kind, pattern in _SHOWN.items():
            if pattern.search(name):
                return NAMES[kind]
    return ""


def unrecorded_note(devices: Iterable[str], recorded: Iterable[str]) -> str:
    """Return a sentence where parameters lie on a device that torch's profiler does not record here, else "".

    ``devices`` are torch's names such as "mps:0", ``recorded`` the kinds that the profiler was started for.
    """
    kinds = dict.fromkeys(device.partition(":")[0] for device in devices)
    missing = [kind for kind in kinds if kind not in ON_CPU and kind not in set(recorded)]
    if not missing:
        return ""
    names = " and ".join(NAMES.get(kind, kind) for kind in missing)
    return (
        f"The model is on {names}, which this torch's profiler does not record: only the host was recorded, and waits "
        "for the device count as the host's time."
    )


# How many cores this process may use: its affinity, the quotas of its control groups, and the ranks beside it.

ROOT = Path("/")  # of the file system, for tests


def usable_cores() -> int:
    """Return the cores that the process can keep busy at once, at least 1; a quota of 2.5 cores counts as 2."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    return max(1, math.floor(min((cores, *_quotas()))))


def cores_of_rank(on_this_node: int) -> int:
    """Return the cores of one rank of several on this machine.

    A rank with fewer cores than the process that started it has been given them for itself; others share them.
    """
    return max(1, usable_cores() // (1 if _is_bound() else max(on_this_node, 1)))


def _is_bound() -> bool:
    with suppress(OSError, AttributeError):
        return os.sched_getaffinity(0) < os.sched_getaffinity(os.getppid())
    return False


def _quotas() -> Iterator[float]:
    """Yield the cores that each group around the process may use, in either version of the control groups."""
    for folder, inner in _groups():
        for group in (inner, *inner.parents):  # a quota of a group around it holds as well
            with suppress(OSError, ValueError, ZeroDivisionError):
                yield _quota(folder / group)


def _groups() -> Iterator[tuple[Path, Path]]:
    """Yield for each hierarchy with CPU quotas where it is mounted and the process's group in it."""
    with suppress(OSError, UnicodeDecodeError):
        for line in (ROOT / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, _, group = line.partition(":")
            controllers, _, path = group.partition(":")
            folders = {"": ("",), "cpu": ("cpu",)}.get(controllers, (controllers, "cpu"))
            if not controllers or "cpu" in controllers.split(","):
                yield from ((ROOT / "sys/fs/cgroup" / name, Path(path.lstrip("/"))) for name in folders)


def _quota(group: Path) -> float:
    """Return the cores that one group may use.

    Raises:
        OSError, ValueError: it has no quota.
    """
    combined = group / "cpu.max"
    if combined.exists():
        quota, period = combined.read_text(encoding="ascii").split()
    else:
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period"))
    if float(quota) <= 0:  # -1: none
        raise ValueError(quota)
    return float(quota) / float(period)


# Which rank a process is, as the program that launched it puts it into the environment.

RECEIVED_FILE = "received.ranks"  # in a capture folder: the summaries of ranks whose captures lie elsewhere

# What the ranks of one run share, whoever launched them.
JOB_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PMIX_NAMESPACE",
    "PMI_JOBID",
    "OMPI_MCA_ess_base_jobid",
)


class Launched(NamedTuple):
    """One process among those that torchrun, accelerate, srun or mpirun started."""

    rank: int = 0
    world_size: int = 1
    on_this_node: int = 1


class _Names(NamedTuple):
    """The variables of one kind of launcher; the number on a node may be missing."""

    rank: str
    size: str
    on_node: str


# The first that fits. What torchrun sets beats what the scheduler around it does. SLURM_STEP_NUM_TASKS is set in the
# steps of srun alone: in a batch script SLURM_NTASKS counts tasks that nobody has started.
_LAUNCHERS = (
    _Names("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    _Names("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    _Names("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
    _Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    _Names("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
)


def launched(environment: Mapping[str, str] = os.environ) -> Launched:
    """Return rank, number of ranks, and how many of them run on this machine.

    Raises:
        UsageError: a variable is not a number, or the rank is none of the job's.
    """
    for names in _LAUNCHERS:
        if names.rank not in environment and (names is not _LAUNCHERS[0] or names.size not in environment):
            continue
        if names is not _LAUNCHERS[0] and names.size not in environment:
            continue
        found = _read(environment, names)
        if found.world_size > 1 or names is _LAUNCHERS[0]:
            return found
    return Launched()


def _read(environment: Mapping[str, str], names: _Names) -> Launched:
    try:
        rank = int(environment.get(names.rank, "0"))
        size = int(environment.get(names.size, "1"))
        text = environment.get(names.on_node, "")
        on_node = _on_node(text, environment) if "SLURM" in names.on_node else int(text or size)
    except ValueError as error:
        raise UsageError(f"{', '.join(names)} must be integers ({error}); unset them, or set all three.") from error
    if not 0 <= rank < max(size, 1):
        raise UsageError(
            f"Invalid {names.rank}={rank}: use 0 to {max(size, 1) - 1} for {names.size}={size}, or unset both."
        )
    return Launched(rank, max(size, 1), max(min(on_node or size, size), 1))


def _on_node(text: str, environment: Mapping[str, str]) -> int:
    """Return the tasks on this node from a text such as "4(x2),1": four on each of two nodes, one on the next."""
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        num, _, times = part.partition("(x")
        counts += [int(num)] * int(times.rstrip(")") or "1") if times else [int(num)]
    node = int(environment.get("SLURM_NODEID", "0"))
    return counts[node] if node < len(counts) else 0


CAPTURE_SCHEMA = 1
MAX_INFO_BYTES = 256 << 20  # decompressed: at most twenty thousand rows of a dozen series for each GPU
MAX_RANKS = 1_000_000
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
    rank: Annotated[int, Meta(ge=0, le=MAX_RANKS - 1)] = 0
    world_size: Annotated[int, Meta(ge=1, le=MAX_RANKS)] = 1
    gpus: tuple[GpuRecord, ...] = ()
    light_file: FileName = ""  # "" where the window was not reached
    attribution_file: FileName = ""
    samples_file: FileName = ""
    lines_file: FileName = ""
    steps_file: FileName = ""
    dataflow_file: FileName = ""
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


class SeenAt(NamedTuple):
    """A line at which the sampler saw a thread."""

    file: str
    line: int
    function: str
    num: int  # samples
    in_python: int  # of them, in which it computes in Python for certain


@dataclass(frozen=True, slots=True)
class OtherThread:
    """What the sampler saw of a thread of the script's own beside the sampled one."""

    name: str
    cpu_ns: int  # while it was watched
    num: int  # samples, those included in which it waited for another thread
    places: tuple[SeenAt, ...]


@dataclass(frozen=True, slots=True)
class Samples:
    """What the sampler saw of the thread that runs the script, one row every few milliseconds.

    In the file: ``{"places": [[file, line, function], …], "time_ns": […], "place": […], "running": […],
    "gc": [[begin, end], …], "others": [{"name": …, "cpu_ns": …, "num": …, "places": [[[file, line, function], num,
    in_python], …]}, …], "watched_ns": …, "own_cpu_ns": …}``.
    """

    time_ns: Ints  # wall clock, unix ns
    place: npt.NDArray[np.int32]  # row of places: the innermost line outside torch and the standard library
    running: npt.NDArray[np.int8]  # 1 on a CPU, 0 waiting, -1 unknown
    places: tuple[tuple[str, int, str], ...]  # file, line, function
    gc_runs: tuple[tuple[int, int], ...] = ()  # begin and end of garbage collections on that thread, unix ns
    others: tuple[OtherThread, ...] = ()
    watched_ns: int = 0  # for how long threads were sampled
    own_cpu_ns: int = 0  # of the sampled thread in that time


@dataclass(frozen=True, slots=True)
class RunSteps:
    """Every step of the run, recorded or not, and what the stepping thread did where no timing window was open.

    In the file: ``{"began_ns": […], "took_ns": […], "device_ns": […], "state": […], "phases": {name: […], …},
    "paths": [[[file, line, function], …], …], "sampled_ns": […], "path": […]}``.
    """

    began_ns: Ints  # wall clock, unix ns
    took_ns: Ints  # the host's time, in which it may only have queued the step's work
    state: npt.NDArray[np.int8]  # row of capture.record.run_log.STATES: plain, light, attribution, edge
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
    draws: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of a file: where samples draw at random
    seeded: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of a file: draws by nothing but a seed
    lookups: Mapping[str, tuple[LookupRecord, ...]] = field(default_factory=dict)  # of a file: tests in lists
    dataflow: Dataflow | None = None

    @property
    def run_samples(self) -> Samples | None:
        """Return the sampler's rows at the times that the steps of the run have, which are those of the recording."""
        return self.unmoved_samples or self.samples
