"""Copies to the host and back on a stream of their own, and what stands in for it in tests."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["HostCopies", "SideCopies", "memory_of", "stored_bytes"]


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
        host = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, pin_memory=True)
        with module.stream(stream):
            memory_of(host).copy_(memory_of(tensor), non_blocking=True)
        tensor.record_stream(stream)
        return host, self._event(module, stream)

    def back(self, host: Tensor, done: object, device: torch.device) -> tuple[Tensor, object]:
        """Queue the copy behind the one to the host, on the stream for this direction."""
        module, stream = self._stream(device, "back")
        stream.wait_event(done)
        with module.stream(stream):
            tensor = torch.empty_strided(host.size(), host.stride(), dtype=host.dtype, device=device)
            memory_of(tensor).copy_(memory_of(host), non_blocking=True)
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


def memory_of(tensor: Tensor) -> Tensor:
    """Return the memory itself where it has no gaps, so that elements that share it are copied once, and in one piece.

    An expanded tensor cannot be written to; its memory can.
    """
    extent = _extent(tensor)
    return tensor.as_strided((extent,), (1,)) if extent <= tensor.numel() else tensor


def stored_bytes(tensor: Tensor) -> int:
    """Return the bytes from the tensor's first element to its last: fewer than it has where elements share memory."""
    return _extent(tensor) * tensor.element_size()


def _extent(tensor: Tensor) -> int:
    """Return the number of elements from the first to the last in memory."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
