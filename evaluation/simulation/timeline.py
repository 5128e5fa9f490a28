"""What runs, and what a run leaves: programs, levers, events of the host, calls of the runtime, tasks of the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from simulation.instructions import Args, Instruction
from simulation.machine import Machine

__all__ = ["PLAIN", "Call", "HostEvent", "Levers", "Loader", "Program", "RankLog", "Run", "Task"]


class HostEvent(NamedTuple):
    """An event of the host: an operator, an annotation or a Python function."""

    category: str
    name: str
    start: float
    end: float
    thread: str
    number: int  # in the order of their beginnings; the External id
    args: Args


class Call(NamedTuple):
    """A call of the runtime."""

    api: str
    start: float
    end: float
    thread: str
    parent: int  # the operator around it, 0 for none
    correlation: int
    stream: int
    drained: float  # when what a blocking call waits for was done, else 0


class Task(NamedTuple):
    """What a device ran."""

    kind: str  # kernel, copy, memset, collective
    name: str
    start: float
    end: float
    stream: int
    parent: int
    correlation: int
    num_bytes: int
    ready: float  # the earliest start by its launch
    device_class: str


@dataclass(frozen=True, slots=True)
class Loader:
    """What makes batches: ``workers`` processes, each ``batch_ns`` for a batch; 0: the training thread itself."""

    workers: int = 8
    batch_ns: float = 1e6
    take_ns: float = 150_000.0  # handing a finished batch over
    prefetch: int = 2


@dataclass(frozen=True, slots=True)
class Levers:
    """Factors on the costs of a kind of host work or a class of device work; what is not named stays."""

    host: Mapping[str, float] = field(default_factory=dict)
    device: Mapping[str, float] = field(default_factory=dict)
    host_rest: float = 1.0
    device_rest: float = 1.0
    waits: bool = True  # False: a synchronisation does not wait

    def of_host(self, kind: str) -> float:
        """Return the factor on a kind of host work."""
        return self.host.get(kind, self.host_rest)

    def of_device(self, device_class: str) -> float:
        """Return the factor on a class of device work."""
        return self.device.get(device_class, self.device_rest)


PLAIN = Levers()


@dataclass(frozen=True, slots=True)
class Program:
    """The step of each rank, and how often it runs: ``skipped`` steps before the recording, then ``steps``."""

    ranks: tuple[tuple[Instruction, ...], ...]
    loader: Loader | None = None
    steps: int = 6
    skipped: int = 2
    seed: int = 0  # of the noise


@dataclass(slots=True)
class RankLog:
    """What happened on a rank while it was recorded."""

    events: list[HostEvent] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    step_starts: list[float] = field(default_factory=list)  # of all steps, on the host
    step_ends: list[float] = field(default_factory=list)
    device_ends: list[float] = field(default_factory=list)  # when the work of the steps so far is done
    begin: float = 0.0  # of the recording


@dataclass(frozen=True, slots=True)
class Run:
    """A program that ran."""

    program: Program
    machine: Machine
    ranks: tuple[RankLog, ...]

    @property
    def step_ns(self) -> float:
        """Return the mean step once the first one is over: host and device, the slowest rank."""
        ends = [
            max(max(log.step_ends[n], log.device_ends[n]) for log in self.ranks)
            for n in range(len(self.ranks[0].step_ends))
        ]
        first = max(self.program.skipped, 1)
        return (ends[-1] - ends[first - 1]) / (len(ends) - first)
