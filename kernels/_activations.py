"""What each block of a model keeps for its backward pass, and how long its forward pass takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from diagnose.kernels._nested import tensors
from diagnose.kernels._planner import BlockCost
from diagnose.kernels._state import trial_passes

__all__ = ["bytes_kept", "measure"]

REPEATS = 3
"""Timed passes, of which the median counts: the first one may still allocate."""


def measure(
    model: nn.Module, forward: Callable[[], object], blocks: Mapping[str, nn.Module]
) -> tuple[list[BlockCost], int]:
    """Return the cost of each block and the bytes that are held for the backward pass in all.

    ``forward`` runs the model once with gradients enabled. Buffers and the random generators are put back. No backward
    pass is run, so no gradient changes.

    Raises:
        ValueError: nothing was kept for a backward pass, or a block never ran.
    """
    with trial_passes(model), torch.enable_grad():
        counter = _Counter(model)
        with _watched(blocks, counter.begin, counter.end):
            with torch.autograd.graph.saved_tensors_hooks(counter.keep, lambda tensor: tensor):
                held = forward()
            total = counter.total_bytes()
            del held
        if not total:
            raise ValueError("The forward pass kept nothing for a backward pass; run it with gradients enabled.")
        if unused := [name for name in blocks if name not in counter.calls]:
            raise ValueError(f"The block {unused[0]!r} did not run in the forward pass; leave it out.")
        seconds = _seconds(forward, blocks)
    return [
        BlockCost(name, sum(counter.calls[name]), max(counter.calls[name]), seconds[name]) for name in blocks
    ], total


def bytes_kept(run: Callable[[], object]) -> int:
    """Return the bytes of all that ``run`` keeps for backward passes, whether it is let go in between or not."""
    counter = _Counter(nn.Module())
    with torch.autograd.graph.saved_tensors_hooks(counter.keep, lambda tensor: tensor):
        run()
    return sum(counter.held.values())


class _Counter:
    """Counts the storages that autograd keeps, by the block that was running."""

    def __init__(self, model: nn.Module) -> None:
        self.fixed = {key for tensor in (*model.parameters(), *model.buffers()) for key, _ in [_storage(tensor)]}
        self.held: dict[StorageWeakRef, int] = {}
        self.stack: list[tuple[str, dict[StorageWeakRef, int], set[StorageWeakRef]]] = []
        self.calls: dict[str, list[int]] = {}

    def begin(self, name: str, batch: object) -> None:
        self.stack.append((name, {}, _storages(batch)))

    def end(self, name: str, batch: object) -> None:
        _, inside, inputs = self.stack.pop()
        outside = inputs | _storages(batch)  # these live on as somebody's input
        size = sum(size for key, size in inside.items() if key not in outside)
        self.calls.setdefault(name, []).append(size)

    def keep(self, tensor: Tensor) -> Tensor:
        key, size = _storage(tensor)
        if key not in self.fixed:
            self.held[key] = size
            for _, inside, _ in self.stack:
                inside[key] = size
        return tensor

    def total_bytes(self) -> int:
        """Return the bytes of what is still held: graphs that were dropped on the way have let go."""
        return sum(size for key, size in self.held.items() if not _is_gone(key))


def _storage(tensor: Tensor) -> tuple[StorageWeakRef, int]:
    """Return a key that no other storage gets while it is kept, and the size in bytes."""
    local = getattr(tensor, "_local_tensor", tensor)
    storage = local.untyped_storage()
    return StorageWeakRef(storage), storage.nbytes()  # type: ignore[no-untyped-call]


def _is_gone(key: StorageWeakRef) -> bool:
    return bool(key.expired())  # type: ignore[no-untyped-call]


def _storages(batch: object) -> set[StorageWeakRef]:
    return {_storage(tensor)[0] for tensor in tensors(batch)}


def _seconds(forward: Callable[[], object], blocks: Mapping[str, nn.Module]) -> dict[str, float]:
    """Return the median forward time of each block."""
    device = next((p.device for block in blocks.values() for p in block.parameters()), torch.device("cpu"))
    samples: dict[str, list[float]] = {name: [] for name in blocks}
    for _ in range(REPEATS):
        clock = _Clock(device)
        with _watched(blocks, clock.begin, clock.end):
            forward()
        for name, seconds in clock.read().items():
            samples[name].append(seconds)
    return {name: statistics.median(times) for name, times in samples.items()}


class _Clock:
    """Times blocks with the device's own events where it has them, else with the host's clock."""

    def __init__(self, device: torch.device) -> None:
        self.module: Any = None if device.type in ("cpu", "meta") else torch.get_device_module(device)
        self.open: list[Any] = []
        self.spans: list[tuple[str, Any, Any]] = []

    def begin(self, name: str, batch: object) -> None:  # as hooks are called
        self.open.append(self._now())

    def end(self, name: str, batch: object) -> None:
        self.spans.append((name, self.open.pop(), self._now()))

    def read(self) -> dict[str, float]:
        """Return seconds by name; waits for the device."""
        if self.module is not None:
            self.module.synchronize()
        seconds: dict[str, float] = {}
        for name, begin, end in self.spans:
            span = end - begin if self.module is None else begin.elapsed_time(end) / 1000
            seconds[name] = seconds.get(name, 0.0) + span
        return seconds

    def _now(self) -> Any:  # seconds, or an event
        if self.module is None:
            return time.perf_counter()
        event = self.module.Event(enable_timing=True)
        event.record()
        return event


@contextmanager
def _watched(
    blocks: Mapping[str, nn.Module], begin: Callable[[str, object], None], end: Callable[[str, object], None]
) -> Iterator[None]:
    """Call ``begin`` with each block's inputs and ``end`` with its outputs."""
    handles = []
    for name, block in blocks.items():

        def before(_: nn.Module, args: object, kwargs: object, name: str = name) -> None:
            begin(name, [args, kwargs])

        def after(_: nn.Module, args: object, output: object, name: str = name) -> None:
            end(name, output)

        handles.append(block.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(block.register_forward_hook(after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
