"""What the ranks of a job show together, as reports need it. Times are ns; ranks are their numbers in the job."""

from __future__ import annotations

from typing import Final, NamedTuple

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


class CollectiveSummary(NamedTuple):
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


class SlowGroup(NamedTuple):
    """A process group whose collectives take longer than the same in the other groups."""

    members: tuple[int, ...]
    use: str
    num_others: int
    ratio: float
    more_ns: float  # a step
    bus_gbps: float  # 0: not known
    others_gbps: float  # their median


class RankRow(NamedTuple):
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


class AlignedCollective(NamedTuple):
    """What one rank has of a collective, on the clock of an ``AlignedStep``."""

    name: str  # its purpose, where that is known
    start_ns: float
    waiting_ns: float  # at first: inside for longer than the rank that came last
    transfer_ns: float


class AlignedRank(NamedTuple):
    """One rank in an ``AlignedStep``."""

    rank: int
    part: str  # late, slowest, median or fastest
    begin_ns: float  # of the step, on the host
    end_ns: float
    causes: tuple[tuple[str, float], ...] = ()  # what it loses most time to up to its last collective, ns
    collectives: tuple[AlignedCollective, ...] = ()  # that were matched with other ranks', in the order of their starts
    num_collectives: int = 0  # of these only the longest are kept where there are very many


class AlignedStep(NamedTuple):
    """One step of a few ranks on one clock; its zero is the first thing that any of them does in it."""

    step: int  # its number
    ranks: tuple[AlignedRank, ...]


class Job(NamedTuple):
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
