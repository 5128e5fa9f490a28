"""Every allocation of a block of code with the line that made it and when it was given back, on any device."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Held", "Lifetimes", "lines_of", "memory_watch"]

OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")
"""Files that allocate for somebody else: torch, these remedies, generated code."""

ELSEWHERE = "a thread of torch, such as the backward pass"


@dataclass(frozen=True, slots=True)
class Held:
    """What one line of code holds at some moment: ``num_bytes`` in ``count`` allocations."""

    place: str
    num_bytes: int
    count: int

    def __str__(self) -> str:
        """Return one line for a log."""
        return f"{self.num_bytes / 1e6:10.2f} MB in {self.count:5} at {self.place}"


class Lifetimes:
    """The allocations within ``memory_watch``, in order; what was there before is not among them."""

    def __init__(self) -> None:
        self._changes: list[tuple[str, int]] = []  # bytes, negative where they were given back

    @property
    def allocated(self) -> int:
        """Bytes that were allocated altogether, given back or not."""
        return sum(size for _, size in self._changes if size > 0)

    @property
    def peak_bytes(self) -> int:
        """The most that was held at once."""
        return self._peak()[0]

    def at_peak(self) -> list[Held]:
        """Return what was held at that moment by the line that allocated it, most first."""
        return lines_of(self._changes[: self._peak()[1]])

    def alive(self) -> list[Held]:
        """Return what is held now; after a step that is what outlived it: state, caches, leaks."""
        return lines_of(self._changes)

    def __str__(self) -> str:
        """Return the peak and its largest lines."""
        return "\n".join([f"{self.peak_bytes / 1e6:.2f} MB at the peak", *map(str, self.at_peak()[:10])])

    def _peak(self) -> tuple[int, int]:
        held = most = end = 0
        for number, (_, size) in enumerate(self._changes, 1):
            held += size
            if held > most:
                most, end = held, number
        return most, end


@contextmanager
def memory_watch() -> Iterator[Lifetimes]:
    """Record allocations of tensors within the block, with the first line of the script's own that asked for each.

    It takes microseconds for each operator, so watch a step or two. What lives on afterwards is followed still.
    """
    lifetimes = Lifetimes()
    with _Watch(lifetimes._changes):
        yield lifetimes


class _Watch(TorchDispatchMode):
    def __init__(self, changes: list[tuple[str, int]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.changes = changes
        self.known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,  # the signature of a mode
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:  # an operator's own
        output = func(*args, **(kwargs or {}))
        given: set[int] | None = None
        for tensor in _pytree.tree_leaves(output):
            if not isinstance(tensor, Tensor) or tensor.device.type == "meta":
                continue
            storage = _storage(tensor)
            if storage is None or storage._cdata in self.known:
                continue
            if given is None:  # what came in was allocated before, within the block or not
                inputs = [_storage(t) for t in _pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
                given = {one._cdata for one in inputs if one is not None}
            if storage._cdata not in given:
                self._begin(storage)
        return output

    def _begin(self, storage: Any) -> None:  # torch.UntypedStorage, whose stub has no address
        place, size, address = _caller(), storage.nbytes(), storage._cdata
        known, changes = self.known, self.changes
        changes.append((place, size))

        def gone(_: object) -> None:
            known.pop(address, None)
            changes.append((place, -size))

        known[address] = weakref.ref(storage, gone)


def lines_of(changes: list[tuple[str, int]]) -> list[Held]:
    """Return what is left of the changes by place, most bytes first."""
    found: dict[str, list[int]] = {}
    for place, size in changes:
        entry = found.setdefault(place, [0, 0])
        entry[0] += size
        entry[1] += 1 if size > 0 else -1
    held = [Held(place, size, count) for place, (size, count) in found.items() if size]
    return sorted(held, key=lambda one: -one.num_bytes)


def _storage(tensor: Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors and wrappers have none of their own
        return None


def _caller() -> str:
    frame = sys._getframe(2)
    while frame.f_code.co_filename.startswith(OWN):
        if frame.f_back is None:
            return ELSEWHERE
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
