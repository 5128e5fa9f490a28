"""Copies to the host and back on a stream of their own, of what a tensor reads only.

A copy holds each element once: an expanded tensor's as often as its base has it, and none that lie between those of a
part of a larger tensor. Strides are the tensor's own if its memory has no gaps.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["HostCopies", "SideCopies", "fill", "memory_of", "room_for", "stored_bytes"]


class HostCopies(Protocol):
    """What offloading needs of a device."""

    def is_on_device(self, tensor: Tensor) -> bool:
        """Return whether there is anything to copy to the host."""

    def out(self, tensor: Tensor) -> tuple[Tensor, object]:
        """Start copying to the host; return the copy and an event of its end."""

    def back(self, host: Tensor, done: object, device: torch.device) -> tuple[Tensor, object]:
        """Start copying back, once ``done``; return the tensor and an event of its end."""

    def hand_over(self, tensor: Tensor, done: object) -> None:
        """Let the current stream use a tensor that came back."""


class SideCopies:
    """Pinned host memory, and one stream for each direction, for CUDA, ROCm and XPU devices."""

    def __init__(self) -> None:
        self.streams: dict[tuple[torch.device, str], Any] = {}

    def is_on_device(self, tensor: Tensor) -> bool:
        """Return whether the tensor is on a device that torch has streams for."""
        return tensor.device.type not in ("cpu", "mps", "meta")

    def out(self, tensor: Tensor) -> tuple[Tensor, object]:
        """Queue the copy behind what computes the tensor; its memory is kept until then."""
        module, stream = self._stream(tensor.device, "out")
        stream.wait_stream(module.current_stream(tensor.device))
        host = room_for(tensor, pin_memory=True)
        with module.stream(stream):
            fill(host, tensor)
        tensor.record_stream(stream)
        return host, self._event(module, stream)

    def back(self, host: Tensor, done: object, device: torch.device) -> tuple[Tensor, object]:
        """Queue the copy behind the one to the host, on the stream for this direction."""
        module, stream = self._stream(device, "back")
        stream.wait_event(done)
        with module.stream(stream):
            tensor = room_for(host, device=device)
            fill(tensor, host)
        return tensor, self._event(module, stream)

    def hand_over(self, tensor: Tensor, done: object) -> None:
        """Make the current stream wait, and keep the memory until that stream is through with it."""
        module = torch.get_device_module(tensor.device)
        current = module.current_stream(tensor.device)
        current.wait_event(done)
        tensor.record_stream(current)

    def _stream(self, device: torch.device, direction: str) -> tuple[Any, Any]:
        module = torch.get_device_module(device)
        if (device, direction) not in self.streams:
            self.streams[device, direction] = module.Stream(device)
        return module, self.streams[device, direction]

    @staticmethod
    def _event(module: Any, stream: Any) -> object:  # a device's module and its stream
        event = module.Event()
        event.record(stream)
        done: object = event
        return done


def room_for(tensor: Tensor, **options: Any) -> Tensor:  # torch's pin_memory or device
    """Return uninitialised memory of the tensor's sizes and dtype for a copy of it."""
    sizes, strides = _base(tensor), tensor.stride()
    if _extent(sizes, strides) > math.prod(sizes):  # gaps
        dense = [1, *itertools.accumulate(reversed(sizes[1:]), operator.mul)][::-1]
        strides = tuple(new if old else 0 for old, new in zip(strides, dense, strict=True))
    return torch.empty_strided(tensor.size(), strides, dtype=tensor.dtype, **options)


def fill(target: Tensor, source: Tensor) -> None:
    """Copy what the source reads into ``room_for`` it; the host does not wait for devices with streams."""
    memory = memory_of(source)
    memory_of(target).view(memory.size()).copy_(memory, non_blocking=True)


def stored_bytes(tensor: Tensor) -> int:
    """Return the bytes of a copy: fewer than the tensor's where elements share memory."""
    sizes = _base(tensor)
    return min(_extent(sizes, tensor.stride()), math.prod(sizes)) * tensor.element_size()


def memory_of(tensor: Tensor) -> Tensor:
    """Return each element once: the memory itself, in one piece, if it has no gaps.

    An expanded tensor cannot be written to; its memory can.
    """
    sizes, strides = _base(tensor), tensor.stride()
    extent = _extent(sizes, strides)
    return tensor.as_strided(*((extent,), (1,)) if extent <= math.prod(sizes) else (sizes, strides))


def _base(tensor: Tensor) -> tuple[int, ...]:
    """Return the sizes without the dimensions along which the tensor is expanded."""
    return tuple(size if stride else min(size, 1) for size, stride in zip(tensor.size(), tensor.stride(), strict=True))


def _extent(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from the first to the last in memory."""
    if 0 in sizes:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
