"""Keeps activations or the optimizer's state in host memory.

What it cures
    `memory-pressure`: what is not needed between forward and backward pass, or between two steps, makes room.

When it does not help
    Where the link to the host is slower than the computation that could hide the copies: computing again
    (`checkpointing`) is then faster. Below ``min_bytes`` a copy costs more than it frees. On a CPU nothing is copied.

Cost
    Pinned host memory of the same size, and the link: each byte crosses it twice in a step. Copies run on streams of
    their own; ``ahead`` tensors come back before they are asked for.

Numerics
    The same numbers, bit by bit. As with all hooks on saved tensors, changing one in place after it was saved is not
    noticed any more.

Example::

    from diagnose.kernels.offload import ActivationOffload, offload_optimizer_state

    offload = ActivationOffload(min_bytes=1 << 20)
    state = offload_optimizer_state(optimizer)
    for x, y in loader:
        with offload:  # the forward pass; the backward pass may be outside
            loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    log(f"{offload.num_bytes / 1e6:.0f} MB went out, {offload.late} of {offload.restored} tensors were not back early")
    state.undo()
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer

from diagnose.kernels._host_copies import HostCopies, SideCopies, stored_bytes

__all__ = ["ActivationOffload", "OffloadedState", "offload_optimizer_state"]

MIN_BYTES = 1 << 20
"""A copy of 1 MB takes 40 us at 25 GB/s; much below that, starting the two copies is what takes the time."""

AHEAD = 2
"""Tensors on their way back while the backward pass uses another."""


@dataclass(eq=False)
class _Packed:
    """A tensor that went out, or is on its way back."""

    host: Tensor
    out: object
    device: torch.device
    number: int
    ready: tuple[Tensor, object] | None = None


class ActivationOffload:
    """Within the block, tensors that autograd saves go to the host; the backward pass brings them back.

    Only tensors on a device with at least ``min_bytes`` go, never parameters or views of them, and each one once
    however many operators save it. Of a part of a larger tensor only its elements go, of an expanded one its base;
    the copy of one with gaps comes back without them. ``num_bytes`` went out so far; ``restored`` tensors came back,
    ``late`` of them were only started when they were asked for.

    Raises:
        ValueError: ``min_bytes`` or ``ahead`` is negative.
    """

    def __init__(self, *, min_bytes: int = MIN_BYTES, ahead: int = AHEAD, copies: HostCopies | None = None) -> None:
        if min_bytes < 0 or ahead < 0:
            raise ValueError(f"ActivationOffload needs min_bytes >= 0 and ahead >= 0, not {min_bytes} and {ahead}.")
        self.min_bytes, self.ahead = min_bytes, ahead
        self.num_bytes = self.restored = self.late = 0
        self._copies = copies or SideCopies()
        self._sent: WeakValueDictionary[int, _Packed] = WeakValueDictionary()  # by number, those still wanted
        self._same: WeakValueDictionary[tuple[Any, ...], _Packed] = WeakValueDictionary()
        self._count = 0
        self._hooks: list[saved_tensors_hooks] = []

    def __enter__(self) -> ActivationOffload:
        """Begin; blocks may be nested or follow each other."""
        self._hooks.append(saved_tensors_hooks(self._pack, self._unpack))
        self._hooks[-1].__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; what went out comes back whenever the backward pass runs."""
        self._hooks.pop().__exit__(kind, error, trace)
        self._same.clear()

    def _pack(self, tensor: Tensor) -> Tensor | _Packed:
        if not self._goes_out(tensor):
            return tensor
        place = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # an address alone comes back
        key = (place, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version)
        packed = self._same.get(key)
        if packed is None:
            host, done = self._copies.out(tensor.detach())
            packed = _Packed(host, done, tensor.device, self._count)
            self._same[key] = self._sent[self._count] = packed
            self._count += 1
            self.num_bytes += stored_bytes(host)
        return packed

    def _unpack(self, packed: Tensor | _Packed) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if packed.ready is None:
            self.late += 1
            self._start(packed)
        for number in range(packed.number - 1, packed.number - 1 - self.ahead, -1):
            coming = self._sent.get(number)  # the backward pass asks in the opposite order
            if coming is not None and coming.ready is None:
                self._start(coming)
        assert packed.ready is not None
        tensor, done = packed.ready
        self._copies.hand_over(tensor, done)
        self.restored += 1
        return tensor

    def _start(self, packed: _Packed) -> None:
        packed.ready = self._copies.back(packed.host, packed.out, packed.device)

    def _goes_out(self, tensor: Tensor) -> bool:
        """Return whether it is worth it; weights stay, also where a transposed view of one was saved."""
        origin = tensor._base if tensor._base is not None else tensor
        plain = tensor.layout is torch.strided and type(tensor) is Tensor
        return (
            plain
            and not isinstance(origin, nn.Parameter)
            and stored_bytes(tensor) >= self.min_bytes
            and (self._copies.is_on_device(tensor))
        )


@dataclass
class OffloadedState:
    """An optimizer whose state lives on the host between steps; ``num_bytes`` went out after the last step."""

    optimizer: Optimizer
    min_bytes: int
    copies: HostCopies
    num_bytes: int = 0
    _away: dict[tuple[Tensor, str], tuple[Tensor, object, torch.device]] = field(default_factory=dict, repr=False)
    _handles: list[Any] = field(default_factory=list, repr=False)

    def fetch(self) -> None:
        """Bring the state to the device; ``step`` does it by itself, and calling it earlier hides the copies."""
        coming = []
        for (parameter, name), (host, done, device) in self._away.items():
            held = self.optimizer.state.get(parameter, {})
            if held.get(name) is host:  # loading a checkpoint may have replaced it
                coming.append((held, name, *self.copies.back(host, done, device)))
        for held, name, tensor, done in coming:
            self.copies.hand_over(tensor, done)
            held[name] = tensor
        self._away.clear()

    def send(self) -> None:
        """Take the state to the host, as happens after each step."""
        self.num_bytes = 0
        for parameter, held in self.optimizer.state.items():
            for name, value in held.items():
                if type(value) is Tensor and value.nbytes >= self.min_bytes and self.copies.is_on_device(value):
                    host, done = self.copies.out(value)
                    held[name] = host
                    self._away[parameter, name] = (host, done, value.device)
                    self.num_bytes += stored_bytes(host)

    def undo(self) -> None:
        """Bring the state back for good."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.fetch()


def offload_optimizer_state(
    optimizer: Optimizer, *, min_bytes: int = MIN_BYTES, copies: HostCopies | None = None
) -> OffloadedState:
    """Keep the optimizer's state on the host between steps; return what undoes it.

    It frees the memory that the state takes while forward and backward pass run, which is where the peak is.
    Checkpoints hold the same values and load as before; ``state_dict`` between steps has tensors on the host, which may
    be on their way there still: synchronise the device before saving them.

    Raises:
        TypeError: this is no torch optimizer.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"offload_optimizer_state takes a torch optimizer, not {type(optimizer).__name__}.")
    state = OffloadedState(optimizer, min_bytes, copies or SideCopies())
    state._handles.append(optimizer.register_step_pre_hook(lambda *_: state.fetch()))
    state._handles.append(optimizer.register_step_post_hook(lambda *_: state.send()))
    state.send()
    return state
