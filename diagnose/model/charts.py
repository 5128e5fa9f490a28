"""The data of a report's charts: the timeline of a step, operators and kernels, the roofline, memory.

Times are nanoseconds, sizes bytes, shares fractions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, overload

from diagnose.model.arrays import Ints
from diagnose.model.locations import Where

# What a step holds in memory by the line of the script that made it: for its backward pass, and for later steps.


class KeptByLine(NamedTuple):
    """What the forward pass of one line makes for the backward pass."""

    where: Where
    num_bytes: int
    recompute_ns: float | None  # per step, to run the line again; None if the timing window does not show it


class LeftByLine(NamedTuple):
    """What one line leaves in each step that the next step ends with."""

    where: Where
    num_values: int
    num_bytes: int


class MemoryByLine(NamedTuple):
    """The memory of a step on one device by line, the most bytes first."""

    device: str
    peak_bytes: int  # that a step holds
    kept_bytes: int  # of all lines, listed or not
    kept: tuple[KeptByLine, ...]
    left: tuple[LeftByLine, ...]


Mark = Literal["", "result", "use", "unused"]
"""What the named operators make in the end, the operator that reads it, a result that no operator reads."""


class FlowNode(NamedTuple):
    """One operator of a picture of the data flow."""

    operator: str  # "mm"
    where: Where
    phase: str  # forward, backward, optimizer, other
    shape: tuple[int, ...]  # of its first result
    dtype: str  # "" without a result
    reads: tuple[int, ...]  # earlier nodes, by their numbers
    inputs: tuple[str, ...]  # of what no operator of the step made: names of parameters and buffers, roles
    share: float  # of the operator time of its step
    is_named: bool  # by the finding
    mark: Mark
    num_before: int  # operators left out between the node before and this one


class FlowPicture(NamedTuple):
    """The part of a step's data flow that a finding names, in the order in which the operators ran."""

    rule: str
    nodes: tuple[FlowNode, ...]
    num_operators: int  # of the step, views not counted
    num_named: int  # by the finding
    share: float  # of the operator time, that the named ones take
    num_after: int  # operators left out after the last node


BUSY = "busy"  # the part of a step in which the device works; the others are named for the rule of their idle time


class Span(NamedTuple):
    """A bar on the timeline of one step; times are ns from the step's start."""

    lane: str  # "GPU 0 stream 7", "host 4711"
    start_ns: int
    end_ns: int
    name: str
    category: str  # compute, communication, copy, operator, annotation, runtime


@dataclass(frozen=True, slots=True, eq=False)
class SpanTable(Sequence[Span]):
    """All bars of one step in columns, which a list of objects would be too large and too slow for."""

    lanes: tuple[str, ...]
    names: tuple[str, ...]
    categories: tuple[str, ...]
    lane: Ints  # rows of lanes
    start: Ints  # ns from the step's start
    end: Ints
    name: Ints  # rows of names
    category: Ints  # rows of categories
    launch: Ints  # of a device task: the bar of the call that queued it, -1 where it is not there

    def __len__(self) -> int:
        return len(self.start)

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Span, ...]: ...
    def __getitem__(self, index: int | slice) -> Span | tuple[Span, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        return Span(
            self.lanes[self.lane[index]],
            int(self.start[index]),
            int(self.end[index]),
            self.names[self.name[index]],
            self.categories[self.category[index]],
        )


class Gap(NamedTuple):
    """A coloured piece of idle on the timeline; the pieces of one step do not overlap."""

    start_ns: int
    end_ns: int
    cause: str  # a rule's id
    detail: str  # what the launching thread did
    place: str = ""  # "train.py:42", of the largest gaps where lines are known


class Frame(NamedTuple):
    """One box of a flame graph: a frame or an event with the same ones around it."""

    name: str
    kind: str  # own, library, module, operator, annotation, runtime
    depth: int  # 0: nothing around it
    time_ns: int  # per step, with what it called


class Flame(NamedTuple):
    """What the host's threads were in while the device was idle for one cause; without a device, while it held them."""

    cause: str  # a rule's id
    time_ns: int  # per step, in the timing window
    frames: tuple[Frame, ...]  # each before what it called, siblings by time
    is_scaled: bool = False  # the frames are of the attribution window, their times brought to ``time_ns``


class Readings(NamedTuple):
    """One series that NVML read of the device while the recorded steps ran."""

    name: str
    unit: str
    points: tuple[tuple[float, float], ...]  # (steps from the begin of the first one, value)
    limit: float | None = None  # what the board allows; None where it does not matter or is not known


class StepParts(NamedTuple):
    """One recorded step and what it consists of, ns; the parts sum to its length as the device had it."""

    number: int  # of ProfilerStep#n, or of its order where steps are not marked
    length_ns: int  # on the host
    parts: Mapping[str, int]  # by cause of idle time and BUSY; without a device by what the host did


class DeviceShare(NamedTuple):
    """Device time of all tasks that one operator launched."""

    name: str
    calls_per_step: float  # tasks
    time_ns: float  # per step
    share: float  # of the time of all device tasks


class CodeTime(NamedTuple):
    """What a module, a function of the user's or a phase takes; figures are for a step, summed over threads.

    None stands for what the recording does not show: calls where samples saw it, device times without a device.
    """

    name: str  # the modules around it and its own: "GPT_0.Block_3.Linear_7"; "train.py:41 compute_loss"; a phase
    self_ns: float  # of the host, without the modules or functions of the same table in it
    share: float  # of the step: of ``host_ns``, of a sampled function of ``self_ns``
    host_ns: float | None = None  # with what it calls, of recursive calls the outermost
    calls: float | None = None  # that begin in the step
    device_ns: float | None = None  # of the tasks launched in it
    backward_ns: float | None = None  # of the host, for the backward of the operators called in it
    backward_device_ns: float | None = None
    depth: int = 0  # of a module: how many are around it


class CodeTimes(NamedTuple):
    """Where a step goes by the program's own structure."""

    source: Literal["frames", "samples", "none"]  # Python frames; the lines that the sampler saw; no stacks, no table
    step_ns: float = 0.0  # of the steps that times are of
    as_timed: bool = True  # times are of the timing window; else of the steps with stacks, which take longer
    phases: tuple[CodeTime, ...] = ()  # disjoint, they sum to the step: loading, forward, …, other
    modules: tuple[CodeTime, ...] = ()  # each before those called in it, siblings by time
    functions: tuple[CodeTime, ...] = ()  # the most expensive first


class Picture(NamedTuple):
    """One representative step for the charts (the one nearest to the median), and what only a page lists."""

    step: int
    step_ns: int
    spans: Sequence[Span] = ()
    gaps: tuple[Gap, ...] = ()
    depth: tuple[tuple[int, int], ...] = ()  # (ns from the step's start, queue depth): a step function
    num_spans_left_out: int = 0  # spans too short to draw that were dropped
    titles: Mapping[str, str] = {}  # of lanes: names of threads, roles of streams
    steps: tuple[StepParts, ...] = ()
    kernels: tuple[KernelTime, ...] = ()  # every one, the most expensive first
    by_operator: tuple[DeviceShare, ...] = ()
    flames: tuple[Flame, ...] = ()  # of each cause, the largest first
    flows: tuple[FlowPicture, ...] = ()  # of each finding that rests on the data flow
    readings: tuple[Readings, ...] = ()  # empty without NVML, or where no reading falls into the recorded steps


class HostOperator(NamedTuple):
    """One operator on the host, summed over the steady steps; most expensive first."""

    name: str
    calls_per_step: float
    self_ns: float  # per step
    total_ns: float  # per step, children included
    shapes: str = ""  # the commonest input shapes


class KernelTime(NamedTuple):
    """All calls of one kernel, or of the kernels that are not listed; the shares of one list sum to 1."""

    name: str
    family: str  # gemm, attention, elementwise, …; "" for several
    calls_per_step: float
    time_ns: float  # per step; tasks side by side count each
    share: float = 0.0  # of the time of all device tasks
    dtype: str = ""  # "" where neither the operator's inputs nor the name show one
    peak_share: float | None = None  # of what the device can do; None without shapes or a known device
    where: Where = Where()  # of its launch


class RooflinePoint(NamedTuple):
    """All calls of one operator with the same shapes and types, set against the device's peak rates."""

    op: str
    shapes: str
    kernel: str  # the longest
    step_share: float
    precision: str
    flop_per_byte: float
    tflops: float  # achieved
    gb_per_s: float  # achieved
    bound: Literal["compute", "memory"]
    achieved: float  # share of the bound's rate


class FlopUtilisation(NamedTuple):
    """The operations of a step against what the device could have computed in that time (MFU).

    Counted are matrix products, convolutions and attention whose shapes were recorded and that took long enough to be
    judged, a forward pass that checkpointing runs again included. As the field defines it, the peak is that of dense
    16-bit products, whatever precision the operations have.
    """

    share: float  # of the 16-bit peak; a lower bound where ``known_share`` is below 1
    flop_per_step: float
    tflops: float  # per second of the step
    known_share: float  # of the device's compute time: kernels whose operator's work is known
    device: str
    own_share: float = 0.0  # of what could be computed at the peak of each operation's own precision


class Roofline(NamedTuple):
    """The heavy operators against the device."""

    device: str
    tflops: Mapping[str, float]  # peak by precision
    gb_per_s: float  # peak
    points: tuple[RooflinePoint, ...] = ()  # the most expensive first


class Memory(NamedTuple):
    """Memory of the device (or of the host, without one) over the steady steps; bytes."""

    device: str
    peak_allocated: int
    peak_reserved: int | None = None
    capacity: int | None = None
    peak_at_ns: int = 0  # from the begin of the first steady step
    timeline: tuple[tuple[int, int, int], ...] = ()  # (ns, allocated, reserved or -1): a step function
    by_category: Mapping[str, int] = {}  # at the peak: parameters, gradients, …
    by_place: tuple[tuple[Where, int], ...] = ()  # at the peak, the largest first
    retries: int | None = None  # allocations that had to free cached memory first
    device_used: int | None = None  # by the driver's count, of all processes; None where it was not sampled
    device_total: int | None = None  # by the driver's count: a little more than ``capacity``
    other_processes: int | None = None  # of device_used; None where the driver's list cannot be attributed
    categories_over_time: Mapping[str, tuple[int, ...]] = {}  # bytes, parallel to ``timeline``

    @property
    def outside_allocator(self) -> int | None:
        """Return what is in use on the device in addition to what the allocator reserved, None where it is not known.

        The driver's context, communicators and libraries, and other processes.
        """
        if self.device_used is None or self.peak_reserved is None:
            return None
        return max(self.device_used - self.peak_reserved, 0)
