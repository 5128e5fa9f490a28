"""Runs a program on a machine: every rank's host, streams, copy engines and collectives.

The training thread and the autograd thread of a rank never work at the same time, so a rank's host is one line of
time that changes threads. A stream takes its tasks in order; so each task's times follow from what was issued before,
and only collectives and barriers need the other ranks. A rank is a generator that stops at each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from simulation.host_costs import HostBetween
from simulation.instructions import (
    BARRIER,
    COLLECTIVE,
    COMM,
    COPY,
    FREE,
    GRAPH,
    HOST,
    LAUNCH,
    LOAD,
    MALLOC,
    POP,
    PUSH,
    RECORD,
    STREAMS,
    SYNC,
    THREAD,
    WAIT,
    Args,
    Instruction,
)
from simulation.loading import BatchQueue, seen
from simulation.machine import NOISE_LENGTH, Machine, noise_table
from simulation.timeline import PLAIN, Call, HostEvent, Levers, Loader, Program, RankLog, Run, Task

__all__ = ["run"]

SMALL_COPY_BYTES = 65_536  # a pageable copy up to this size is staged, and its call returns at once
QUICK_CALL_NS = 1_000.0  # of a call that finds nothing to wait for
_KINDS = {
    **dict.fromkeys(("launch", "memset", "graph", "memcpy", "collective"), "launch"),
    **dict.fromkeys(("malloc", "free"), "allocator"),
}


def run(program: Program, machine: Machine, levers: Levers = PLAIN, *, keep: bool = True) -> Run:
    """Run the program; without ``keep`` only the ends of the steps are noted."""
    host = noise_table(program.seed * 2 + 1, machine.host_noise)
    device = noise_table(program.seed * 2 + 2, machine.device_noise)
    setting = _Setting(program, machine, levers, host, device, keep)
    ranks = [_Rank(setting, rank) for rank in range(len(program.ranks))]
    lives = [rank.live() for rank in ranks]
    waiting = [next(live, None) for live in lives]
    while any(at is not None for at in waiting):
        met = max(at for at in waiting if at is not None)
        waiting = [_go_on(live, met) for live in lives]
    return Run(program, machine, tuple(rank.log for rank in ranks))


def _go_on(live: Generator[float, float, None], met: float) -> float | None:
    """Return when the rank comes to its next meeting, None where there is none."""
    try:
        return live.send(met)
    except StopIteration:
        return None


@dataclass(frozen=True, slots=True)
class _Setting:
    """What all ranks share."""

    program: Program
    machine: Machine
    levers: Levers
    host_noise: list[float]
    device_noise: list[float]
    keep: bool


class _Rank:
    """One rank: its clock, its streams, what it wrote down."""

    def __init__(self, setting: _Setting, rank: int) -> None:
        self.program, self.machine, self.levers = setting.program, setting.machine, setting.levers
        self.host_noise, self.device_noise, self.keep = setting.host_noise, setting.device_noise, setting.keep
        self.rank, self.log = rank, RankLog()
        self.between = HostBetween(self.program.ranks[rank], self.machine, self.levers, self.host_noise, rank)
        self.now = 0.0
        self.thread = "main"
        self.step = 0
        self.number = self.correlation = 0
        self.open: list[tuple[float, int, str, str, Args]] = []
        self.parents = [0]
        self.done = [0.0] * len(STREAMS)  # when each stream has done all that it was given
        self.blocked = [0.0] * len(STREAMS)  # by an event of another stream
        self.ends: list[list[float]] = [[] for _ in STREAMS]
        self.engines = {"HtoD": 0.0, "DtoH": 0.0, "DtoD": 0.0}
        self.events: dict[int, float] = {}
        self.used: set[str] = set()
        self.queue = BatchQueue(self.program.loader or Loader())

    def live(self) -> Generator[float, float, None]:
        """Run all steps; yield the time of each meeting, receive when the last rank came."""
        do: dict[int, Callable[[Instruction], None]] = {
            PUSH: self._push,
            POP: self._pop,
            HOST: self._host,
            LAUNCH: self._launch,
            GRAPH: self._graph,
            COPY: self._copy,
            SYNC: self._sync,
            RECORD: self._record,
            WAIT: self._wait,
            MALLOC: self._malloc,
            FREE: self._free,
            LOAD: self._load,
            THREAD: self._thread,
        }
        program = self.program
        instructions = program.ranks[self.rank] if self.keep else self.between.stopping
        for self.step in range(program.skipped + program.steps):
            if self.step == program.skipped - 1:
                self._drain("device_sync", max(self.done))
            if self.step == program.skipped:
                self.log.begin = self.now
            self.log.step_starts.append(self.now)
            waits = None if self.keep else self.between.step(self.step)
            for instruction in instructions:
                if waits is not None:
                    self.now += next(waits)
                code = instruction[0]
                if code == COLLECTIVE:
                    yield from self._collective(instruction)
                elif code == BARRIER:
                    yield from self._barrier()
                else:
                    do[code](instruction)
            if waits is not None:
                self.now += next(waits)
            self.log.step_ends.append(self.now)
            self.log.device_ends.append(max(self.done))
        self._drain("device_sync", max(self.done))
        self.log.tasks = [task for task in self.log.tasks if task.start >= self.log.begin]

    @property
    def recording(self) -> bool:
        return self.keep and self.step >= self.program.skipped

    def _cost(self, kind: str, key: int, ns: float) -> float:
        noise = self.host_noise[(key + self.step * 977 + self.rank * 131) % NOISE_LENGTH]
        return ns * noise * self.levers.of_host(kind)

    def _work(self, device_class: str, key: int, ns: float) -> float:
        noise = self.device_noise[(key + self.step * 977) % NOISE_LENGTH]
        return ns * noise * self.levers.of_device(device_class)

    def _push(self, instruction: Instruction) -> None:
        _, key, kind, before, name, category, args = instruction
        self.number += 1
        self.open.append((self.now, self.number, name, category, args))
        if category == "cpu_op":
            self.parents.append(self.number)
            self.now += self.machine.record_ns * self.levers.of_host("record")
        self.now += self._cost(kind, key, before * self.machine.host)

    def _pop(self, instruction: Instruction) -> None:
        _, key, kind, after = instruction
        self.now += self._cost(kind, key, after * self.machine.host)
        start, number, name, category, args = self.open.pop()
        if category == "cpu_op":
            self.parents.pop()
        if self.recording:
            self.log.events.append(HostEvent(category, name, start, self.now, self.thread, number, args))

    def _host(self, instruction: Instruction) -> None:
        _, key, kind, ns = instruction
        self.now += self._cost(kind, key, ns)

    def _thread(self, instruction: Instruction) -> None:
        _, key, which = instruction
        self.now += self._cost("runtime", key, self.machine.switch_ns)
        self.thread = which

    def _call(self, api: str, key: int, ns: float, *, stream: int = 0, until: float = 0.0) -> None:
        """Make a call that takes ``ns`` and, with ``until``, does not return before it."""
        start = self.now
        self.now += self._cost(_KINDS.get(api, "runtime"), key, ns)
        self.now = max(self.now, until)
        self.correlation += 1
        if self.recording:
            self.log.calls.append(
                Call(api, start, self.now, self.thread, self.parents[-1], self.correlation, stream, until)
            )

    def _return_at(self, when: float, *, drained: float = 0.0) -> None:
        """Let the call that was just made return then, and not before."""
        self.now = when
        if self.recording:
            self.log.calls[-1] = self.log.calls[-1]._replace(end=when, drained=drained)

    def _queue_free(self, stream: int) -> float:
        """Return when the stream's queue has a place."""
        ends = self.ends[stream]
        return ends[-self.machine.queue_depth] if len(ends) >= self.machine.queue_depth else 0.0

    def _ready(self, stream: int, *, engine: float = 0.0) -> tuple[float, float]:
        """Return when the device has the launch that just returned, and when its task can start."""
        machine, levers = self.machine, self.levers
        here = self.now + machine.latency_ns * levers.of_device("latency")
        gap = machine.gap_ns * levers.of_device("latency")
        after = max(self.done[stream], self.blocked[stream])
        return here, max(here, after + gap if after else 0.0, engine)

    def _task(self, what: tuple[str, str, int, str], stream: int, ready: float, start: float, length: float) -> None:
        """Give the stream a task: kind, name, bytes and class."""
        end = start + length
        self.done[stream] = end
        self.ends[stream].append(end)
        if self.keep:
            kind, name, num_bytes, device_class = what
            self.log.tasks.append(
                Task(kind, name, start, end, stream, self.parents[-1], self.correlation, num_bytes, ready, device_class)
            )

    def _launch(self, instruction: Instruction) -> None:
        _, key, name, device_class, ns, stream, api = instruction
        self._call(api, key, self.machine.launch_ns, stream=stream, until=self._queue_free(stream))
        if name not in self.used:
            self.used.add(name)
            self._return_at(self.now + self.machine.first_use_ns * self.levers.of_host("launch"))
        here, start = self._ready(stream)
        kind = "memset" if api == "memset" else "kernel"
        self._task((kind, name, 0, device_class), stream, here, start, self._work(device_class, key, ns))

    def _graph(self, instruction: Instruction) -> None:
        _, key, kernels, stream = instruction
        cost = self.machine.graph_launch_ns + self.machine.graph_node_ns * len(kernels)
        self._call("graph", key, cost, stream=stream, until=self._queue_free(stream))
        here, start = self._ready(stream)
        gap = self.machine.gap_ns * self.levers.of_device("latency") * 0.6
        for number, (name, device_class, ns) in enumerate(kernels):
            length = self._work(device_class, key + number * 7, ns)
            self._task(("kernel", name, 0, device_class), stream, here, start, length)
            start += length + gap

    def _copy(self, instruction: Instruction) -> None:
        _, key, direction, num_bytes, pinned, stream, blocking = instruction
        machine = self.machine
        if direction == "DtoD":
            gbps = machine.gpu.memory_gbps * machine.memory_efficiency / 2
        else:
            gbps = machine.pinned_gbps if pinned else machine.pageable_gbps
        self._call("memcpy", key, machine.memcpy_ns, stream=stream, until=self._queue_free(stream))
        here, start = self._ready(stream, engine=self.engines[direction])
        length = self._work("copy", key, 1_500.0 + num_bytes / gbps)
        self.engines[direction] = end = start + length
        name = f"{direction} {'pinned' if pinned else 'pageable'}"
        self._task(("copy", name, num_bytes, "copy"), stream, here, start, length)
        if direction == "HtoD" and not pinned and num_bytes > SMALL_COPY_BYTES and self.levers.waits:
            self._return_at(max(self.now, end), drained=end)
        if blocking:
            self._drain("stream_sync", self.done[stream], stream, key=key)

    def _sync(self, instruction: Instruction) -> None:
        _, key, scope, stream = instruction
        until = max(self.done) if scope == "device" else self.done[stream]
        self._drain("device_sync" if scope == "device" else "stream_sync", until, stream, key=key)

    def _drain(self, api: str, until: float, stream: int = 0, *, key: int = 0) -> None:
        """Block until the device has come to ``until``, then return to the host."""
        back = self._cost("runtime", key, self.machine.sync_ns)
        waits = self.levers.waits and until > self.now
        self._call(api, key, QUICK_CALL_NS, stream=stream, until=until + back if waits else 0.0)

    def _record(self, instruction: Instruction) -> None:
        _, key, stream = instruction
        self._call("record", key, self.machine.event_ns, stream=stream)
        self.events[key] = max(self.done[stream], self.blocked[stream])

    def _wait(self, instruction: Instruction) -> None:
        _, key, stream = instruction
        self._call("wait", key, self.machine.event_ns, stream=stream)
        self.blocked[stream] = max(self.blocked[stream], self.events.get(key, 0.0))

    def _malloc(self, instruction: Instruction) -> None:
        self._call("malloc", instruction[1], self.machine.malloc_ns)

    def _free(self, instruction: Instruction) -> None:
        cost = self._cost("allocator", instruction[1], self.machine.free_ns)
        drained = max(self.done) if self.levers.of_host("allocator") and self.levers.waits else 0.0
        self._call("free", instruction[1], 0.0, until=max(drained, self.now) + cost)

    def _collective(self, instruction: Instruction) -> Generator[float, float, None]:
        _, key, name, num_bytes = instruction
        self._call("collective", key, self.machine.launch_ns, stream=COMM, until=self._queue_free(COMM))
        here, start = self._ready(COMM)
        length = self._work("comm", key, self.machine.collective_ns + num_bytes / self.machine.link_gbps)
        met = start if self.levers.of_device("comm") == 0 else (yield start)
        self._task(("collective", name, num_bytes, "comm"), COMM, here, start, met + length - start)

    def _barrier(self) -> Generator[float, float, None]:
        if self.levers.of_host("barrier"):
            self.now = (yield self.now) + self.machine.collective_ns

    def _load(self, instruction: Instruction) -> None:
        loader = self.program.loader
        if loader is None:
            return
        key, start = instruction[1], self.now
        made = self._cost("loader", key + self.queue.batch * 4099, loader.batch_ns)
        self.now = self.queue.take(start, made, self._cost("loader", key, loader.take_ns))
        events = seen(loader, start, self.now, self.thread, self.number + 1)
        self.number += len(events)
        if self.recording:
            self.log.events += events
