"""Samples of contents on a device: they are taken and kept there, and fetched once after the steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from diagnose.capture.dataflow.positions import MAX_SAMPLE, offsets
from diagnose.capture.dataflow.storages import Base

__all__ = ["MAX_WHOLE_BYTES", "DeviceSamples", "Fetched"]

MAX_WHOLE_BYTES = 1 << 16  # of a tensor of integers, or of a square one, that is copied whole: masks and indices
MAX_BYTES = 64 << 20  # of all samples
_UNSIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # that all devices can index


class Fetched(NamedTuple):
    """The content of one value."""

    number: int
    base: Base
    sample: bytes
    whole: bytes  # b"" where only the sample was taken
    with_kind: bool


class _Taken(NamedTuple):
    number: int
    base: Base
    sample: torch.Tensor
    whole: torch.Tensor | None
    with_kind: bool


class DeviceSamples:
    """The samples taken so far."""

    def __init__(self) -> None:
        self._taken: list[_Taken] = []
        self._positions: dict[tuple[Any, ...], torch.Tensor] = {}
        self._num_bytes = 0

    @property
    def names(self) -> list[str]:
        """Return the devices of which samples were taken."""
        return sorted({str(each.base.device) for each in self._taken})

    def take(self, number: int, tensor: torch.Tensor, base: Base, num: int, *, with_kind: bool) -> bool:
        """Take a sample of the ``num`` elements from a base's first to its last one; return whether that can be done.

        Nothing of it is recorded, neither here, nor by modes of the script, nor by autograd.
        """
        is_readable = tensor.dtype == base.dtype and not (tensor.is_conj() or tensor.is_neg())
        if not is_readable or self._num_bytes > MAX_BYTES or base.device.type == "meta" or _is_capturing(base.device):
            return False
        try:
            with torch._C._AutoDispatchBelowAutograd(), _without_modes():
                flat = tensor.as_strided((num,), (1,), base.offset).view(_UNSIGNED[base.dtype.itemsize])
                sample = flat.index_select(0, self._of(base))
                whole = flat.clone() if num > MAX_SAMPLE and _is_wanted_whole(base, num) else None
        except RuntimeError:  # a device without these operators
            return False
        self._num_bytes += sample.nbytes + (whole.nbytes if whole is not None else 0)
        self._taken.append(_Taken(number, base, sample, whole, with_kind))
        return True

    def fetch(self) -> Iterator[Fetched]:
        """Yield what was taken; each device is waited for once."""
        devices = {each.base.device for each in self._taken}
        with _without_modes():
            for device in devices:
                if device.type != "cpu":
                    torch.get_device_module(device).synchronize(device)  # samples were taken on several streams
                yield from _fetched([each for each in self._taken if each.base.device == device])
        self._taken = []

    def _of(self, base: Base) -> torch.Tensor:
        key = base.shape, base.stride, base.device
        found = self._positions.get(key)
        if found is None:
            found = torch.from_numpy(offsets(base.shape, base.stride).copy()).to(base.device)
            self._positions[key] = found
        return found


def _is_wanted_whole(base: Base, num: int) -> bool:
    shape = base.shape
    is_integer = not (base.dtype.is_floating_point or base.dtype.is_complex)
    is_square = len(shape) > 1 and shape[-1] == shape[-2]
    return base.is_contiguous and (is_integer or is_square) and num * base.dtype.itemsize <= MAX_WHOLE_BYTES


def _without_modes() -> Any:
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


def _is_capturing(device: torch.device) -> bool:
    """Return whether what runs now becomes part of a graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _fetched(taken: list[_Taken]) -> Iterator[Fetched]:
    parts = [each.sample for each in taken] + [each.whole for each in taken if each.whole is not None]
    data = torch.cat([part.view(torch.uint8) for part in parts]).cpu().numpy().tobytes()
    ends, at = [], 0
    for part in parts:
        ends.append((at, at + part.nbytes))
        at += part.nbytes
    rest = iter(ends[len(taken) :])
    for each, (begin, end) in zip(taken, ends, strict=False):
        whole = b""
        if each.whole is not None:
            first, last = next(rest)
            whole = data[first:last]
        yield Fetched(each.number, each.base, data[begin:end], whole, each.with_kind)
