"""A trace in memory: one table of events in columns, and what the file records about itself.

Times are int64 nanoseconds from the first event of the file; ``epoch_ns`` maps them to the wall clock.
In every column -1 means "does not apply or was not recorded".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ids, Ints, read_only

_STEP_MARK = "ProfilerStep#"


class Kind(IntEnum):
    """What an event is, whatever the exporter's release called its category."""

    OP = 0  # an operator on the host: `cpu_op`, `Operator`
    ANNOTATION = 1  # record_function on the host: `user_annotation`, ProfilerStep#n, DataLoader, Optimizer
    PYTHON = 2  # a Python or nn.Module frame: `python_function`
    RUNTIME = 3  # an API call on the host: `cuda_runtime`, `cuda_driver`, `Runtime`, hip*
    KERNEL = 4  # a kernel on the device, collectives included
    MEMCPY = 5  # a copy on the device
    MEMSET = 6  # a fill on the device
    SYNC = 7  # a wait recorded by `enable_cuda_sync_events`: `cuda_sync`
    OVERHEAD = 8  # the profiler's own work: `overhead`
    MEMORY = 9  # an allocation or a release, an instant: `[memory]`
    GC = 10  # a run of Python's garbage collector: "Python GC"


@dataclass(frozen=True, slots=True)
class Events:
    """Parallel columns, one row an event, sorted by start (ties: the longer event first); read-only."""

    start: Ints  # when it began, ns
    end: Ints  # when it ended, ns; equals start for instants and zero-time events
    kind: npt.NDArray[np.uint8]  # a Kind
    name: npt.NDArray[np.int32]  # row of Trace.names
    thread: npt.NDArray[np.int16]  # host events: row of Trace.threads
    device: npt.NDArray[np.int16]  # device events: the device's id as the file has it
    stream: npt.NDArray[np.int32]  # device events: the stream's id as the file has it
    correlation: Ids  # the id that a launch and its device tasks share; MEMORY: the address
    cause: npt.NDArray[np.int32]  # device tasks and SYNC: row of the RUNTIME call that queued them
    size: Ints  # MEMCPY, MEMSET: bytes; MEMORY: bytes, negative for a release; collectives: elements sent
    shapes: npt.NDArray[np.int32]  # OP, ANNOTATION: row of Trace.names with the text of "Input Dims"
    types: npt.NDArray[np.int32]  # OP, ANNOTATION: row of Trace.names with the text of "Input type"
    values: npt.NDArray[np.int32]  # OP: row of Trace.names holding the text of "Concrete Inputs": strides, flags
    detail: npt.NDArray[np.int32]  # row of Trace.names: an op's "Call stack", a collective's name, dtype and group
    # OP: the autograd sequence number that forward and backward share; collectives: their number in the process group;
    # MEMORY: bytes allocated on the device after it
    sequence: Ids
    grid: npt.NDArray[np.int32]  # KERNEL: number of thread blocks
    # SYNC: correlation of the cudaEventRecord that is waited for; MEMORY: bytes reserved on the device after it
    awaits: Ids

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.start)

    def rows(self, index: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Events:
        """Return the table of the chosen rows; ``cause`` keeps pointing into the full table."""
        return Events(**read_only({f.name: getattr(self, f.name)[index] for f in fields(self)}))


class Thread(NamedTuple):
    """One host thread that recorded events."""

    pid: str
    tid: str
    name: str = ""


class Device(NamedTuple):
    """One device as `deviceProperties` describes it; zero and "" where the file has no value."""

    id: int
    name: str = ""
    memory_bytes: int = 0
    num_sms: int = 0
    compute_capability: tuple[int, int] = (0, 0)


class Note(NamedTuple):
    """One sentence about a limitation of the recording; ``rule`` where a trust rule states it."""

    text: str
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """One file of one rank.

    ``cut`` is true where the file ended before its closing bracket and was read up to there.
    ``metadata`` holds the small top-level values of the file, such as ``distributedInfo``.
    """

    events: Events
    names: Sequence[str]
    threads: Sequence[Thread]
    devices: Sequence[Device]
    rank: int = 0
    world_size: int = 1
    epoch_ns: int = 0  # wall-clock time (unix, ns) of time zero; 0 where the file's clock is not the wall clock
    path: str = ""
    raw_bytes: int = 0  # size of the JSON text, decompressed
    cut: bool = False
    metadata: Mapping[str, object] = field(default_factory=dict)
    trust: tuple[Note, ...] = ()
    has_name: npt.NDArray[np.bool_] = field(init=False, repr=False, compare=False)  # by kind: an event of it has a name

    def __post_init__(self) -> None:
        """Note which names each kind of event has, so that a name is searched once and not in each event."""
        has_name = np.zeros((len(Kind), len(self.names)), bool)
        has_name[self.events.kind, self.events.name] = True
        object.__setattr__(self, "has_name", has_name)


def step_number(name: str) -> int | None:
    """Return n of a step mark `ProfilerStep#n`, None for any other name."""
    digits = name[len(_STEP_MARK) :]
    is_mark = name.startswith(_STEP_MARK) and digits.isascii() and digits.isdigit()
    # Such a number fits into int64.
    return int(digits) if is_mark and len(digits) <= 18 else None
