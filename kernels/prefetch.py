"""Copies the next batches to the device during the step.

What it cures
    `exposed-copy`, and the share of `data-stall` that is pinning and copying on the training thread.

When it does not help
    When the loader itself is slower than the step (give the loader more workers), when the batches are on the
    device already, or when they are so small that a copy takes less time than its launch. On a CPU it passes
    batches through.

Cost
    Device memory for ``ahead`` more batches, page-locked host memory for one or two, and one thread that only pins.

Numerics
    The same batches in the same order: every number stays as it was. The loader is asked for a batch one or two steps
    earlier than before; a dataset that draws from torch's global CPU generator in the training process shares it
    with the model's own draws on the CPU, and then sees another order of draws.

Example::

    from diagnose.kernels.prefetch import DevicePrefetcher

    loader = DataLoader(dataset, batch_size=64, num_workers=4, pin_memory=True)
    for epoch in range(epochs):
        batches = DevicePrefetcher(loader, "cuda")
        batches.set_epoch(epoch)
        for images, labels in batches:  # on the device already, the next ones on their way
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

import torch

from diagnose.kernels._nested import Batch, has_opaque, moved, needs_pin, pinned, tensors
from diagnose.kernels._wrapping import LoaderWrapper

__all__ = ["DevicePrefetcher", "SideStream"]

T = TypeVar("T")

WITHOUT_STREAMS = frozenset({"cpu", "mps", "meta"})
"""Device types whose copies torch cannot order on a second stream; batches are moved when they are asked for."""


class DevicePrefetcher(LoaderWrapper[T]):
    """Iterates over ``loader`` with every tensor of a batch on ``device``, copied ``ahead`` batches early.

    A batch is a tensor or any nesting of mappings, lists, tuples, named tuples and dataclasses of them, or an object
    with a ``to(device, non_blocking=...)`` method; anything else passes through as it is. The loader's own errors
    arrive where a plain loop would meet them. A loop may be left early and started again. Attributes that are not
    the prefetcher's (``dataset``, ``sampler``, ``batch_size``) are the loader's. A batch that the loader hands out
    in pinned memory must not be overwritten by it later, since the copy is still under way.

    Raises:
        ValueError: ``ahead`` is less than one.
    """

    def __init__(self, loader: Iterable[T], device: torch.device | str | int, *, ahead: int = 1) -> None:
        if ahead < 1:
            raise ValueError(
                f"DevicePrefetcher needs ahead >= 1, not {ahead}; use the loader itself to copy nothing early."
            )
        super().__init__(loader)
        self.device = torch.device(device)
        self.ahead = ahead

    def __iter__(self) -> Iterator[T]:
        """Yield every batch on the device."""
        if self.device.type in WITHOUT_STREAMS:
            return (moved(batch, self.device, non_blocking=False) for batch in self.loader)
        return self._ahead_of(SideStream(self.device))

    def _ahead_of(self, side: Side) -> Iterator[T]:
        source = _Pinned(iter(self.loader), side.pin)
        copied: deque[tuple[T, object]] = deque()
        try:
            while True:
                while len(copied) <= self.ahead and (entry := source.next()) is not None:
                    copied.append(side.copy(entry[0]))
                    source.look_ahead()
                if not copied:
                    break
                yield _handed_over(side, *copied.popleft())  # no name here: the user alone decides how long it lives
            source.raise_error()
        finally:
            source.close()


def _handed_over(side: Side, batch: Batch, done: object) -> Batch:
    side.hand_over(batch, done)
    return batch


class Side(Protocol):
    """What the prefetcher needs of a device: its second stream, and pinned memory."""

    def pin(self, batch: Batch) -> Batch:
        """Return the batch in pinned memory, tensors that are pinned already as they are."""

    def copy(self, batch: Batch) -> tuple[Batch, object]:
        """Start copying; return the batch on the device and an event of the copy's end."""

    def hand_over(self, batch: Batch, done: object) -> None:
        """Let the consumer's stream use the batch once the copy is done."""


class SideStream:
    """A stream beside the current one of a CUDA, ROCm or XPU device."""

    def __init__(self, device: torch.device) -> None:
        self.module = torch.get_device_module(device)
        self.device = device if device.index is not None else torch.device(device.type, self.module.current_device())
        self.stream = self.module.Stream(self.device)

    def pin(self, batch: Batch) -> Batch:
        """Pin; runs on the pinning thread, which would otherwise open a context on device 0."""
        self.module.set_device(self.device)
        return pinned(batch)

    def copy(self, batch: Batch) -> tuple[Batch, object]:
        """Queue the copies on the side stream."""
        if has_opaque(batch):  # its tensors cannot be recorded with the allocator, so no copy may overtake their users
            self.stream.wait_stream(self.module.current_stream(self.device))
        with self.module.stream(self.stream):
            on_device = moved(batch, self.device, non_blocking=True)
        done = self.module.Event()
        done.record(self.stream)
        return on_device, done

    def hand_over(self, batch: Batch, done: object) -> None:
        """Make the current stream wait for the copy, and keep the memory until that stream is through with it."""
        stream = self.module.current_stream(self.device)
        stream.wait_event(done)
        for tensor in tensors(batch):
            if tensor.device.type == self.device.type:
                tensor.record_stream(stream)


class _Pinned:
    """Pulls batches on the calling thread and pins each on another while the caller goes on.

    The loader is never asked for a batch before the one before it was pinned, so it may reuse ordinary memory.
    """

    def __init__(self, source: Iterator[Batch], pin: Callable[[Batch], Batch]) -> None:
        self.source, self.pin = source, pin
        self.error: Exception | None = None
        self.pool: ThreadPoolExecutor | None = None
        self.waiting: Future[Batch] | None = None
        self.ended = False

    def next(self) -> tuple[Batch] | None:
        """Return the next pinned batch; None at the end or at an error, which is kept."""
        try:
            coming = self.waiting or self._pull()
            self.waiting = None
            return None if coming is None else (coming.result(),)
        except Exception as error:  # raised again once the batches before it were used
            self.error, self.ended = error, True
            return None

    def look_ahead(self) -> None:
        """Start pinning one more batch, if batches need pinning at all."""
        if self.pool is None or self.waiting is not None:
            return
        try:
            self.waiting = self._pull()
        except Exception as error:
            self.error, self.ended = error, True

    def raise_error(self) -> None:
        """Raise what the loader or the pinning raised, if anything."""
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Let go of the thread and of the loader's iterator."""
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)
        self.waiting, self.source = None, iter(())

    def _pull(self) -> Future[Batch] | None:
        if self.ended:
            return None
        try:
            batch = next(self.source)
        except StopIteration:
            self.ended = True
            return None
        if needs_pin(batch):
            self.pool = self.pool or ThreadPoolExecutor(1, thread_name_prefix="pin-batches")
            return self.pool.submit(self.pin, batch)
        ready: Future[Batch] = Future()
        ready.set_result(batch)
        return ready
