"""What a program is made of.

An instruction is a tuple whose first entry is its code; the second, its key, picks the noise on its cost, so that a
program without a waste has the same draws as the program with it. Host costs are of a kind, device costs of a class:
what a lever can scale.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

__all__ = [
    "BARRIER",
    "COLLECTIVE",
    "COMM",
    "COMPUTE",
    "COPIES",
    "COPY",
    "FREE",
    "GRAPH",
    "HOST",
    "LAUNCH",
    "LOAD",
    "MALLOC",
    "POP",
    "PUSH",
    "RECORD",
    "SIDE",
    "STREAMS",
    "SYNC",
    "THREAD",
    "WAIT",
    "Args",
    "Emitter",
    "Instruction",
]

Instruction: TypeAlias = tuple[Any, ...]
Args: TypeAlias = dict[str, Any]
(PUSH, POP, HOST, LAUNCH, GRAPH, COPY, SYNC, RECORD, WAIT, MALLOC, FREE, COLLECTIVE, BARRIER, LOAD, THREAD) = range(15)
STREAMS = (COMPUTE, COPIES, COMM, SIDE) = range(4)


class Emitter:
    """Writes the instructions of one step of one rank."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self._base = 0
        self._count = 0

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Let keys inside follow from the section's name; those outside stay as they are."""
        outer = (self._base, self._count)
        self._base, self._count = zlib.crc32(name.encode()), 0
        yield
        self._base, self._count = outer

    @property
    def place(self) -> str:
        """Return where the next key will be drawn from."""
        return f"{self._base}.{self._count}"

    def beside(self, name: str) -> AbstractContextManager[None]:
        """Let keys after it be as if the section were not there."""
        return self.section(f"{name}.{self.place}")

    def key(self) -> int:
        """Return the next key of the section."""
        self._count += 1
        return (self._base + self._count * 2654435761) & 0xFFFFFFFF

    @contextmanager
    def event(
        self,
        name: str,
        category: str,
        *,
        kind: str = "dispatch",
        before: float = 0.0,
        after: float = 0.0,
        **args: object,
    ) -> Iterator[None]:
        """Enclose what is emitted inside in an event of the host, which itself takes ``before`` and ``after`` ns."""
        self.instructions.append((PUSH, self.key(), kind, before, name, category, args))
        yield
        self.instructions.append((POP, self.key(), kind, after))

    def op(self, name: str, self_ns: float = 0.0, **args: Any) -> AbstractContextManager[None]:
        """Enclose in an operator."""
        return self.event(name, "cpu_op", before=self_ns * 0.6, after=self_ns * 0.4, **args)

    def frame(self, name: str) -> AbstractContextManager[None]:
        """Enclose in a Python function."""
        return self.event(name, "python_function", kind="python")

    def annotation(self, name: str) -> AbstractContextManager[None]:
        """Enclose in an annotation of the user's or of torch's."""
        return self.event(name, "user_annotation", kind="python", before=1_500.0, after=500.0)

    def host(self, kind: str, ns: float) -> None:
        """Let the host work without an event of its own."""
        self.instructions.append((HOST, self.key(), kind, ns))

    def launch(self, name: str, device_class: str, ns: float, *, stream: int = COMPUTE, api: str = "launch") -> None:
        """Launch a kernel or a memset."""
        self.instructions.append((LAUNCH, self.key(), name, device_class, ns, stream, api))

    def graph(self, kernels: tuple[tuple[str, str, float], ...]) -> None:
        """Launch a graph of kernels: name, class, ns."""
        self.instructions.append((GRAPH, self.key(), kernels, COMPUTE))

    def copy(self, direction: str, num_bytes: int, *, pinned: bool, stream: int = COMPUTE, blocking: bool) -> None:
        """Copy between host and device, or inside the device (``"DtoD"``)."""
        self.instructions.append((COPY, self.key(), direction, num_bytes, pinned, stream, blocking))

    def sync(self, scope: str = "stream", stream: int = COMPUTE) -> None:
        """Wait on the host for a stream or the device."""
        self.instructions.append((SYNC, self.key(), scope, stream))

    def order(self, first: int, then: int) -> None:
        """Let stream ``then`` wait for what ``first`` was given so far."""
        key = self.key()
        self.instructions.append((RECORD, key, first))
        self.instructions.append((WAIT, key, then))

    def record(self, stream: int, key: int | None = None) -> int:
        """Record an event on a stream and return its key."""
        key = self.key() if key is None else key
        self.instructions.append((RECORD, key, stream))
        return key

    def wait(self, key: int, stream: int) -> None:
        """Let a stream wait for an event."""
        self.instructions.append((WAIT, key, stream))

    def malloc(self, num_bytes: int) -> None:
        """Allocate device memory from the driver."""
        self.instructions.append((MALLOC, self.key(), num_bytes))

    def free(self) -> None:
        """Give device memory back to the driver, which waits for the device."""
        self.instructions.append((FREE, self.key()))

    def collective(self, name: str, num_bytes: int) -> None:
        """Launch a collective on the communication stream; every rank issues the same ones in the same order."""
        self.instructions.append((COLLECTIVE, self.key(), name, num_bytes))

    def barrier(self) -> None:
        """Wait on the host until every rank has come here."""
        self.instructions.append((BARRIER, self.key()))

    def load(self) -> None:
        """Take the next batch from the loader."""
        self.instructions.append((LOAD, self.key()))

    def thread(self, which: str) -> None:
        """Go on in another thread of the host: ``"main"`` or ``"autograd"``; the other one waits for it."""
        self.instructions.append((THREAD, self.key(), which))
