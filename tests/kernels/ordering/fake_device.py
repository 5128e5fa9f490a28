"""A stand-in for a device with streams, which fails on every access that is not ordered after what it needs.

Tensors on the meta device are the device's memory, and operators on them its kernels: they take their place on the
current stream and nothing is computed. What is ordered before what follows from vector clocks: a stream's next task
knows what the host knew at its launch, what came before on the stream, and what waits brought; the host knows what it
waited for. An access must know of

- the writes of what it reads, and all accesses of what it writes, on the device and in pinned memory;
- in memory of the device that was freed and may be given out again: all accesses of other streams, but for those that
  ``record_stream`` had named by then, for which the allocator waits itself.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

HOST = "host"
aten = torch.ops.aten


class Unordered(AssertionError):
    """An access came before what it needs was done, or may have."""


@dataclass(frozen=True)
class Access:
    """What touched a piece of memory: the place on its timeline, and the operator's name."""

    timeline: str
    tick: int
    what: str

    def is_known_to(self, clock: Counter[str]) -> bool:
        return clock[self.timeline] >= self.tick


@dataclass
class Memory:
    """One storage: where it is, on which stream it was made, who uses it."""

    pinned: bool
    home: str
    writes: list[Access] = field(default_factory=list)
    reads: list[Access] = field(default_factory=list)
    recorded: set[str] = field(default_factory=set)


class Stream:
    """Stands for a device's stream."""

    def __init__(self, device: FakeDevice, name: str) -> None:
        self.owner, self.name, self.device = device, name, torch.device("meta")

    def wait_stream(self, other: Stream) -> None:
        self.owner.learn(self.name, self.owner.known_to(other.name))

    def wait_event(self, event: Event) -> None:
        self.owner.learn(self.name, event.clock)

    def synchronize(self) -> None:
        self.owner.learn(HOST, self.owner.known_to(self.name))


class Event:
    """Stands for a device's event: over once it was waited for, or once the test finishes the device's work."""

    def __init__(self, device: FakeDevice, **_: Any) -> None:
        self.owner, self.clock = device, Counter[str]()

    def record(self, stream: Stream | None = None) -> None:
        self.clock = self.owner.known_to((stream or self.owner.current_stream()).name)

    def query(self) -> bool:
        return all(self.owner.clocks[HOST][name] >= tick for name, tick in self.clock.items())

    def synchronize(self) -> None:
        self.owner.learn(HOST, self.clock)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self.owner.current_stream()).wait_event(self)


class Graph:
    """Stands for a CUDA graph: the accesses of what was captured, made again by each replay."""

    def __init__(self, device: FakeDevice) -> None:
        self.owner, self.tasks = device, list[tuple[str, list[Memory], list[Memory]]]()

    def replay(self) -> None:
        for what, reads, writes in self.tasks:
            self.owner.launch(what, reads, writes)


class FakeDevice(TorchDispatchMode):
    """The device, and what stands for ``torch.cuda``. Within it every operator is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.clocks: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.memory: dict[int, Memory] = {}
        self.freed: defaultdict[str, list[Access]] = defaultdict(list)  # by the stream that they may be given to
        self.streams = [Stream(self, "main")]
        self.num_made = 0
        self.capturing: Graph | None = None
        self.refs: dict[int, Any] = {}

    # What torch.cuda has

    def Stream(self, *_: Any, **__: Any) -> Stream:
        self.num_made += 1
        return Stream(self, f"side {self.num_made}")

    def Event(self, **options: Any) -> Event:
        return Event(self, **options)

    def CUDAGraph(self) -> Graph:
        return Graph(self)

    def current_stream(self, *_: Any) -> Stream:
        return self.streams[-1]

    def synchronize(self, *_: Any) -> None:
        for name in list(self.clocks):
            self.learn(HOST, self.clocks[name])

    def current_device(self) -> int:
        return 0

    @contextmanager
    def stream(self, stream: Stream):
        self.streams.append(stream)
        try:
            yield
        finally:
            self.streams.pop()

    @contextmanager
    def graph(self, graph: Graph, stream: Stream):
        self.synchronize()  # as torch's does
        self.capturing = graph
        with self.stream(stream):
            try:
                yield
            finally:
                self.capturing = None

    def record_stream(self, tensor: Tensor, stream: Stream) -> None:
        self._memory(tensor).recorded.add(stream.name)

    # What tests need

    def made(self, *shape: int) -> Tensor:
        """Return a tensor of the device that a kernel has written."""
        return torch.empty(*shape, device="meta").fill_(1.0)

    def pinned(self, *shape: int) -> Tensor:
        """Return a tensor in pinned memory that the host has written."""
        return torch.zeros(*shape, pin_memory=True)

    def read_by_host(self, tensor: Tensor, what: str) -> None:
        """Count a look at values that comes past the operators."""
        if not tensor.is_meta:
            self._access(HOST, what, [self._memory(tensor)], [])

    # Clocks

    def known_to(self, timeline: str) -> Counter[str]:
        """Return what is over at a timeline's end; work that is launched now knows what the host knows, too."""
        if timeline != HOST:
            self.learn(timeline, self.clocks[HOST])
        return Counter(self.clocks[timeline])

    def learn(self, timeline: str, clock: Counter[str]) -> None:
        self.clocks[timeline] |= clock

    def finish(self) -> None:
        """Let the device do all that was launched, as time does; the host has not waited, but may find events over."""
        self.synchronize()

    # Accesses

    def launch(self, what: str, reads: list[Memory], writes: list[Memory]) -> None:
        """Put a task on the current stream."""
        if self.capturing is not None:
            self.capturing.tasks.append((what, reads, writes))
            return
        name = self.current_stream().name
        self.known_to(name)
        self._access(name, what, reads, writes)

    def _access(self, timeline: str, what: str, reads: list[Memory], writes: list[Memory]) -> None:
        clock = self.clocks[timeline]
        clock[timeline] += 1
        access = Access(timeline, clock[timeline], what)
        for memory in reads:
            self._need(memory.writes, clock, f"{what} on {timeline} reads what")
            memory.reads.append(access)
        for memory in writes:
            self._need([*memory.writes, *memory.reads], clock, f"{what} on {timeline} overwrites what")
            memory.writes, memory.reads = [access], []

    @staticmethod
    def _need(accesses: list[Access], clock: Counter[str], what: str) -> None:
        for access in accesses:
            if not access.is_known_to(clock):
                raise Unordered(f"{what} {access.what} on {access.timeline} may not be through with.")

    def _memory(self, tensor: Tensor, *, pinned: bool = False) -> Memory:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.memory:
            home = self.current_stream().name if tensor.is_meta else HOST
            self.memory[key] = memory = Memory(pinned, home)
            captured = self.capturing is not None  # such memory stays the graph's

            def gone(_: object) -> None:
                del self.memory[key], self.refs[key]
                if home != HOST and not captured:
                    used = [*memory.writes, *memory.reads]
                    self.freed[home] += [a for a in used if a.timeline not in {home, HOST} | memory.recorded]

            self.refs[key] = weakref.ref(storage, gone)
        return self.memory[key]

    def _allocate(self, tensor: Tensor, *, pinned: bool) -> None:
        if tensor.is_meta and self.capturing is None:
            home = self.current_stream().name
            self._need(self.freed.pop(home, []), self.known_to(home), f"memory given out again on {home} is what")
        self._memory(tensor, pinned=pinned)

    # Operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name.removeprefix("aten::")
        inputs = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if name == "is_pinned":
            return self._memory(args[0]).pinned
        pinned = bool(kwargs.pop("pin_memory", False)) or name == "_pin_memory"
        result = self._result(func, name, args, kwargs)
        outputs = [leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        given = {t.untyped_storage()._cdata for t in inputs}
        made = [t for t in outputs if t.untyped_storage()._cdata not in given]
        for tensor in made:
            self._allocate(tensor, pinned=pinned)
        written = [args[i] for i, a in enumerate(func._schema.arguments[: len(args)]) if _is_written(a)]
        written += [kwargs[a.name] for a in func._schema.arguments if a.name in kwargs and _is_written(a)]
        written = [t for t in _pytree.tree_leaves(written) if isinstance(t, Tensor)]
        is_view = not made and not written and bool(outputs)
        if is_view or name.startswith(("empty", "new_empty")):
            return result
        self._run(name, inputs, [*written, *made], is_async=self._is_async(name, args, kwargs))
        return result

    def _result(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "_pin_memory":
            return args[0].clone()
        if name == "copy_" and args[1].is_meta and not args[0].is_meta:
            return args[0]
        if name == "_to_copy" and args[0].is_meta and kwargs.get("device", args[0].device).type == "cpu":
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if name == "_local_scalar_dense" and args[0].is_meta:
            return 0.0
        return func(*args, **kwargs)

    @staticmethod
    def _is_async(name: str, args: Any, kwargs: Any) -> bool:
        if name == "copy_":
            return bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False))
        return bool(kwargs.get("non_blocking", name != "_to_copy"))

    def _run(self, name: str, inputs: list[Tensor], written: list[Tensor], *, is_async: bool) -> None:
        reads = _unique(self._memory(t) for t in inputs if not any(t is w for w in written))
        writes = _unique(self._memory(t) for t in written)
        on_host = [m for m in (*reads, *writes) if m.home == HOST]
        if len(on_host) == len(reads) + len(writes):
            self._access(HOST, name, reads, writes)
            return
        self.launch(name, reads, writes)
        waits = name == "_local_scalar_dense" or (on_host and not (is_async and all(m.pinned for m in on_host)))
        if waits and self.capturing is None:
            self.current_stream().synchronize()


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _seen(device: FakeDevice, name: str, original: Any) -> Any:
    def look(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        device.read_by_host(tensor, name)
        return original(tensor, *args, **kwargs)

    return look


def _unique(memories: Any) -> list[Memory]:
    return list({id(memory): memory for memory in memories}.values())


@contextmanager
def fake_device() -> Iterator[FakeDevice]:
    """Put a fake device in the place of ``torch.cuda`` and of every device module, and look at each operator."""
    fake = FakeDevice()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_device_module", lambda *_: fake)
        # A function, so that a tensor binds it.
        patch.setattr(Tensor, "record_stream", lambda tensor, stream: fake.record_stream(tensor, stream))  # noqa: PLW0108
        patch.setattr(Tensor, "is_cuda", property(lambda tensor: tensor.is_meta), raising=False)
        for name in ("tolist", "numpy"):
            patch.setattr(Tensor, name, _seen(fake, name, getattr(Tensor, name)))
        for name in ("Stream", "Event", "CUDAGraph", "current_stream", "stream", "graph", "synchronize"):
            patch.setattr(torch.cuda, name, getattr(fake, name))
        with fake:
            yield fake
