"""What the comparison of ranks needs of one of them: a few kilobytes, made where its trace lies.

``RankProfile`` is all that leaves the machine that read a rank's trace. `diagnose.ranks.measure.profile_of` makes it,
``JobProfile`` gathers them in any order and any grouping, and everything in this package that compares ranks takes a
``JobProfile`` and nothing else.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from diagnose.errors import InputError
from diagnose.model.arrays import Ints
from diagnose.model.diagnosis import Partition, Verdict
from diagnose.model.rules import RuleMeta
from diagnose.model.serialization import inflate, text_of, utf8

FORMAT: Final = 5  # of the bytes; a reader of another format refuses them
COMMUNICATION: Final = "communication"  # collectives that nothing hides, and idle that waits for one
PHASES: Final = ("compute-forward", "compute-backward", "compute-optimizer")  # device or host computing


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as one rank knows it; "" and () where the trace does not name it."""

    name: str = ""
    use: str = ""  # its description: default_pg, mesh_tp, …
    size: int = 0  # 0: not recorded
    members: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectiveKind:
    """What equal collectives of one rank share."""

    group: int  # row of RankProfile.groups
    name: (
        str  # all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv, barrier, … or a kernel's name
    )
    num_bytes: int = -1  # that this rank puts in; -1: not recorded
    num_bytes_out: int = -1  # that it gets
    dtype: str = ""  # lower case, as the profiler names it
    purpose: str = ""  # of model.job.PURPOSES, "" where nothing shows it
    source: int = -1  # send and recv: the ranks at both ends
    target: int = -1

    @property
    def shared_bytes(self) -> int:
        """Return the bytes that equal collectives of other ranks have too; -1 if each has its own share."""
        return self.num_bytes if self.name not in ("all_to_all", "send_recv") else -1


@dataclass(frozen=True, slots=True)
class Collectives:
    """The collectives of the steps in the order of their starts; columns are parallel. Times are the rank's own, ns."""

    kind: npt.NDArray[np.int32]  # row of RankProfile.kinds
    step: npt.NDArray[np.int32]  # row of RankProfile.step_number: in which it was launched
    sequence: Ints  # its number within the group, -1 where that was not recorded
    start: Ints  # this rank's own arrival
    length: Ints  # waiting for the others, and transfer
    covered: Ints  # from its start until nothing else runs: waiting in that time costs nothing
    alone: Ints  # of its length: nothing computes, and no earlier collective runs
    hidden: Ints  # of its length: computation runs
    queued: Ints  # before its start, in which it stood behind an earlier collective and nothing else was missing
    unlaunched: Ints  # of ``alone``: nothing to compute was launched yet, and the rank did not wait for its end

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.start)

    @property
    def end(self) -> Ints:
        """Return when each ends."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Speeds:
    """What took most time, by name: shows whether one thing or everything is slower than on other ranks."""

    name: npt.NDArray[np.int64]  # CRC-32 of the name
    count: Ints  # over all steps
    total_ns: Ints


@dataclass(frozen=True, slots=True)
class LineTime:
    """What of a rank's step goes into one line of the script, by one cause."""

    cause: str
    file: str
    line: int
    function: str
    code: str = ""  # the text of the line, where the capture holds it
    spent_ns: float = 0.0  # a step: the sampler's share of the time of this cause


@dataclass(frozen=True, slots=True)
class SampledLine:
    """A line of the script in all steps of the run that nothing recorded, by the samples of it."""

    file: str
    line: int
    function: str
    code: str = ""  # the text of the line, where the capture holds it
    within: int = 0  # samples at the line or in what it calls
    at: int = 0  # samples in no other line of the script
    caller: int = -1  # row of the line that calls it, -1 for none


@dataclass(frozen=True, slots=True)
class MadeLine:
    """What one line of the program makes in a step of the recorded data flow."""

    step: int  # 0 or 1
    file: str
    line: int
    function: str
    code: str = ""
    num: int = 0  # operators
    made: int = 0  # elements that they write
    draw_file: str = ""  # where a value that it reads is drawn at random, "" where none is known to be
    draw_line: int = 0
    draw_code: str = ""


@dataclass(frozen=True, slots=True)
class KeptPart:
    """A value of which a rank reads one of as many parts as there are ranks."""

    file: str
    line: int  # of the call that makes the whole, in the function that takes the part
    function: str
    code: str
    cut_line: int  # where the part is taken
    cut_code: str
    offset: int  # of the part, in elements
    made_ns: float  # what a step takes to make the whole
    functions: tuple[tuple[str, str], ...] = ()  # file and name of what runs for it alone


@dataclass(frozen=True, slots=True)
class Reduced:
    """Reductions of one kind of which only a later sum is read, in a step of the recorded data flow."""

    file: str
    line: int  # of the reduction that is needed
    function: str
    code: str = ""
    num: int = 0  # whose results are one sum
    share: float = 0.0  # of the step's reductions of these tensors that are not needed
    name: str = ""  # as of a CollectiveKind
    in_backward: bool = False  # DistributedDataParallel or FSDP calls them


@dataclass(frozen=True, slots=True)
class Receives:
    """What a rank receives from single other ranks, as a stage of a pipeline; without a device."""

    per_step: float
    waited_ns: float  # a step, while it runs no operator
    passes: int = 0  # of the backward in a step, 0 where that is not known
    sends_first: bool = False  # a step begins with a send


def _no_ints() -> Ints:
    return np.zeros(0, np.int64)


NO_COLLECTIVES: Final = Collectives(np.zeros(0, np.int32), np.zeros(0, np.int32), *(_no_ints() for _ in range(8)))


@dataclass(frozen=True, slots=True)
class RankProfile:
    """One rank's times, steps and collectives.

    An interval reaches from the end of a step's last collective to the end of the next step's: up to there ranks are in
    step with each other, whatever their clocks show. ``spent`` has a column for each step's interval, and one more for
    what follows the last collective; its columns sum to the lengths of the intervals.
    """

    rank: int = 0
    world_size: int = 1
    path: str = ""
    run_id: str = ""  # of a capture; "" where none describes the trace
    host: str = ""  # name of the machine, "" where it was not recorded
    has_device: bool = False
    device: str = ""  # its name
    link_gbps: float = 0.0  # peak of all its links to other devices, one direction, 1e9 bytes a second; 0: not known
    verdict: Verdict = "no-gpu"
    step_ns: float = 0.0
    partition: Partition | None = None
    epoch_ns: int = 0  # of time zero; 0: the clock is not the wall clock
    window: tuple[int, int] = (0, 0)
    step_number: Ints = field(default_factory=_no_ints)  # n of ProfilerStep#n
    step_begin: Ints = field(default_factory=_no_ints)  # host time, ns
    step_end: Ints = field(default_factory=_no_ints)
    bounds: Ints = field(default_factory=_no_ints)  # end of each step's last collective
    host_time: Ints = field(
        default_factory=_no_ints
    )  # what the host took for each step, waiting left out; 0: not known
    causes: tuple[str, ...] = ()  # PHASES, COMMUNICATION, exposed-copy, and rules of idle time
    spent: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 1), np.int64))  # [cause, interval], ns
    beside: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros((0, 1), np.int64)
    )  # of spent, what the device was busy for: with collectives (see unlaunched) or copies
    groups: tuple[Group, ...] = ()
    kinds: tuple[CollectiveKind, ...] = ()
    collectives: Collectives = NO_COLLECTIVES
    kernels: Speeds = field(default_factory=lambda: Speeds(_no_ints(), _no_ints(), _no_ints()))
    kernel_names: tuple[str, ...] = ()  # of the rows of ``kernels``
    operators: Speeds = field(default_factory=lambda: Speeds(_no_ints(), _no_ints(), _no_ints()))  # on the host
    blocks: float = 0.0  # of threads that its kernels run in a step: as many on equal inputs; 0: not recorded
    elements: float = 0.0  # of the inputs of its operators in a step; 0: not recorded
    lines: tuple[LineTime, ...] = ()  # of the host's time, where the capture has samples
    run_lines: tuple[SampledLine, ...] = ()  # of the whole run, where the capture has samples of it
    run_samples: int = 0  # of the whole run
    made: tuple[MadeLine, ...] = ()  # by the lines of the data flow, in the order of the program
    receives: Receives | None = None
    reduced: Reduced | None = None
    kept: tuple[KeptPart, ...] = ()  # those that take longest first
    ready_share: float = 0.0  # of the time, in which the training thread was runnable but had no core; 0: not recorded
    clock_mhz: float = 0.0  # mean of the SM clock while it worked; 0: not recorded
    factor: float = 0.0  # by which its times were scaled, to those of steps without the profiler; 0: as recorded
    is_cut: bool = False  # the file ends before its end
    num_events: int = 0
    notes: tuple[str, ...] = ()  # what its own trace does not show

    @property
    def num_steps(self) -> int:
        """Return the number of steps."""
        return len(self.step_number)

    @property
    def idle_by_cause(self) -> dict[str, float]:
        """Return the share of the window that each rule of idle time accounts for, the largest first."""
        length = max(self.window[1] - self.window[0], 1)
        idle = self.spent - self.beside if len(self.beside) else self.spent
        shares = {
            cause: float(idle[i].sum()) / length
            for i, cause in enumerate(self.causes)
            if cause not in (*PHASES, COMMUNICATION)
        }
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def to_bytes(self) -> bytes:
        """Return the profile packed: 2 to 10 kB for some hundred collectives."""
        packed = (FORMAT, utf8(self.path), replace(self, path=""))
        return zlib.compress(msgspec.msgpack.encode(packed, enc_hook=_packed), 6)

    @classmethod
    def from_bytes(cls, data: bytes, max_bytes: int = 64 << 20) -> RankProfile:
        """Return the profile that ``to_bytes`` packed; ``max_bytes`` is what it may take unpacked.

        100,000 collectives take 4 MB.

        Raises:
            InputError: these are other bytes, damaged, or of another version.
        """
        decode = msgspec.msgpack.decode
        try:
            version, *rest = decode(inflate(data, max_bytes), type=list[msgspec.Raw])
            if (number := decode(version)) == FORMAT:
                path, profile = text_of(decode(rest[0])), decode(rest[1], type=cls, dec_hook=_array)
                if isinstance(path, str) and profile.fits:
                    return replace(profile, path=path)
                raise ValueError("its parts do not fit each other")
        except (msgspec.DecodeError, ValueError, TypeError, LookupError, RecursionError):
            raise InputError("The summary of a rank is damaged. Make it again from the trace.") from None
        raise InputError(
            f"The summary of a rank was made by another version of diagnose (format {number!r:.20}, not {FORMAT}). "
            "Make it again from the trace."
        )

    @property
    def fits(self) -> bool:
        """Return whether the columns fit each other, as those of another process may not."""
        c, num = self.collectives, self.num_steps
        parallel = [
            (self.step_number, self.step_begin, self.step_end, self.bounds),
            *(tuple(getattr(each, f.name) for f in fields(each)) for each in (c, self.kernels, self.operators)),
        ]
        return bool(
            all(column.shape == columns[0].shape == (len(column),) for columns in parallel for column in columns)
            and self.spent.shape == (len(self.causes), num + 1)
            and len(self.host_time) in (0, num)
            and len(self.kernel_names) in (0, len(self.kernels.name))
            and (not len(self.beside) or self.beside.shape == self.spent.shape)
            and ((c.kind >= 0) & (c.kind < len(self.kinds)) & (c.step >= 0) & (c.step < num)).all()
            and all(0 <= kind.group < len(self.groups) for kind in self.kinds)
            and all(-1 <= line.caller < len(self.run_lines) for line in self.run_lines)
        )


@dataclass(frozen=True, slots=True)
class JobProfile:
    """The profiles of a job's ranks, sorted by rank; ``missing`` are inputs that gave none, with the reason."""

    ranks: tuple[RankProfile, ...] = ()
    missing: tuple[str, ...] = ()  # one sentence each

    @classmethod
    def of(cls, profiles: Iterable[RankProfile], missing: Iterable[str] = ()) -> JobProfile:
        """Return the job of these profiles."""
        return cls(tuple(sorted(profiles, key=lambda p: (p.rank, p.path))), tuple(sorted(missing)))

    def merge(self, other: JobProfile) -> JobProfile:
        """Return both together; in whatever order and grouping parts are merged, the result is the same."""
        return JobProfile.of((*self.ranks, *other.ranks), (*self.missing, *other.missing))


def _packed(value: Any) -> Any:
    """Return an array as the differences of neighbours in the narrowest type that holds them; a number as Python's."""
    if not isinstance(value, np.ndarray):
        return value.item()
    steps = np.diff(value.astype(np.int64).ravel(), prepend=0)
    least, most = int(steps.min(initial=0)), int(steps.max(initial=0))
    narrow = next(t for t in ("<i1", "<i2", "<i4", "<i8") if np.iinfo(t).min <= least and most <= np.iinfo(t).max)
    return {"shape": list(value.shape), "type": narrow, "data": steps.astype(narrow).tobytes()}


def _array(kind: Any, packed: dict[str, Any]) -> npt.NDArray[Any]:
    """Return the array that ``_packed`` packed, of the type that its field is annotated with."""
    steps = np.frombuffer(packed["data"], packed["type"]).astype(np.int64)
    values: npt.NDArray[Any] = np.cumsum(steps).reshape(packed["shape"]).astype(get_args(get_args(kind)[1])[0])
    return values


@dataclass(frozen=True, slots=True)
class CauseTraits:
    """Ids of rules, by what their time means between ranks."""

    waits: frozenset[str]  # waiting for other ranks, not the rank's own
    host: frozenset[str]  # grows where a host executes the same more slowly
    operators: frozenset[str]  # of these: as its operators take longer
    unknown: frozenset[str]  # explains nothing
    copies: str  # waiting for copies that nothing hides


def traits_of(rules: Iterable[RuleMeta]) -> CauseTraits:
    """Return them as the rules state them."""
    rules = tuple(rules)
    return CauseTraits(
        frozenset(m.id for m in rules if m.awaits_ranks),
        frozenset(m.id for m in rules if m.paced_by),
        frozenset(m.id for m in rules if m.paced_by == "dispatch"),
        frozenset(m.id for m in rules if not m.explains or (m.kind == "trust" and not m.one_off)),
        next(m.id for m in rules if m.cause == "copy"),
    )
