"""Numbers the storages that operators touch and the values that they hold one after another.

A storage is known by its address while it lives, and a weak reference reports its death: nothing is kept alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from diagnose.capture.dataflow.structure import CODES, Code, extent
from diagnose.model.shapes import num_elements

UNSEEN, PENDING = -1, -2  # instead of the number of a content: it is not to be looked at, or not yet

# Value, shape, stride, offset and dtype of one argument or result.
RawUse: TypeAlias = "tuple[int, Sequence[int], tuple[int, ...], int, torch.dtype]"
View: TypeAlias = "tuple[Sequence[int], tuple[int, ...], int, torch.dtype]"  # the same without the value


class RawValue:
    """One version of one storage, as it is known while the steps run."""

    __slots__ = ("base", "content", "dies", "producer", "step", "storage", "version")

    def __init__(self, live: _Live, version: int, producer: int, step: int) -> None:
        self.storage, self.base, self.version = live.storage, live.base, version
        self.producer, self.step = producer, step
        self.content = PENDING  # number of its content
        self.dies = -1


class Base:
    """The tensor that a storage was first seen through, ``seen``, and which elements its content is read from.

    These are all of the storage: where the tensor shows a part, a write elsewhere must not go unnoticed.
    """

    __slots__ = (
        *("code", "device", "dtype", "extent", "is_contiguous", "num_bytes", "offset", "seen", "shape", "stride"),
    )

    def __init__(self, tensor: torch.Tensor, storage: Any, view: View | None) -> None:
        """``storage`` is None for a tensor that has none."""
        shape, self.stride, self.offset, self.dtype = view or _view_of_none(tensor)
        self.seen = self.shape = tuple(shape)
        self.device = tensor.device
        self.code: Code | None = None  # how its numbers are coded, None if it has none that can be read
        self.extent = 0  # elements from the first to the last one
        self.is_contiguous, self.num_bytes = False, 0
        if storage is None or view is None:
            return
        self.num_bytes = storage.nbytes()
        num = self.num_bytes // self.dtype.itemsize
        self.is_contiguous = tensor.is_contiguous()
        self.extent = tensor.numel()
        if not (self.is_contiguous and self.extent == num):
            # Where it shows not all elements of its storage, some of them perhaps in several places.
            if num_elements([n for n, step in zip(self.shape, self.stride, strict=True) if step]) < num:
                self.shape, self.stride, self.offset, self.is_contiguous = (num,), (1,), 0, True
            self.extent = extent(self.shape, self.stride) if num else 0
        self.code = CODES.get(self.dtype) if self.extent else None


class _Live:
    """A storage that is alive, or a tensor that has none."""

    __slots__ = ("base", "ref", "storage", "value")

    def __init__(self, storage: int, base: Base) -> None:
        self.storage, self.base = storage, base
        self.value = -1  # the present one
        self.ref: _Ref | None = None


class _Ref(weakref.ref[Any]):
    __slots__ = ("key",)

    key: int


class Storages:
    """The storages seen so far; ``now`` returns the number of the latest operator."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.values: list[RawValue] = []
        self.step = 0
        self._now = now
        self._live: dict[int, _Live] = {}
        self._num = 0
        self._of_storage: list[list[int]] = []  # values by storage
        self._forget_ref = self._forget

    def use(self, tensor: torch.Tensor) -> RawUse:
        """Return the value that a tensor shows; one that is seen for the first time was there before."""
        view = view_of(tensor)
        live = self._find(tensor, view)
        if live.value < 0:
            self._add(live, -1, 0)
        return live.value, *(view or _view_of_none(tensor))

    def write(self, tensor: torch.Tensor, producer: int) -> RawUse:
        """Return the value that an operator has just written into a tensor's storage."""
        view = view_of(tensor)
        return self._write(self._find(tensor, view), tensor, view, producer)

    def made(self, tensor: torch.Tensor, producer: int) -> RawUse | None:
        """Return the value of an operator's result; None for a view of a storage that was there before."""
        view = view_of(tensor)
        live = self._find(tensor, view)
        return self._write(live, tensor, view, producer) if live.value < 0 else None

    def _write(self, live: _Live, tensor: torch.Tensor, view: View | None, producer: int) -> RawUse:
        version = self.values[live.value].version + 1 if live.value >= 0 else 0
        if not version or self.values[live.value].producer != producer:  # two results may share a storage
            self._add(live, producer, version)
        return live.value, *(view or _view_of_none(tensor))

    def present(self, tensor: torch.Tensor) -> int:
        """Return the present value of a tensor's storage, -1 if none has been seen."""
        live = self._live.get(_key(tensor)[0])
        return live.value if live is not None else -1

    def origin(self, tensor: torch.Tensor) -> RawValue | None:
        """Return the first value of a tensor's storage, None if none has been seen."""
        value = self.present(tensor)
        return self.values[self._of_storage[self.values[value].storage][0]] if value >= 0 else None

    def end(self) -> None:
        """Stop following storages: what lives now lives on."""
        self._live = {}

    def _find(self, tensor: torch.Tensor, view: View | None) -> _Live:
        key, owner = _key(tensor)
        live = self._live.get(key)
        if live is None:
            live = _Live(self._num, Base(tensor, owner if owner is not tensor else None, view))
            self._num += 1
            self._of_storage.append([])
            live.ref = _Ref(owner, self._forget_ref)
            live.ref.key = key
            self._live[key] = live
        return live

    def _add(self, live: _Live, producer: int, version: int) -> None:
        live.value = len(self.values)
        self._of_storage[live.storage].append(live.value)
        self.values.append(RawValue(live, version, producer, self.step))

    def _forget(self, ref: weakref.ref[Any]) -> None:
        """Take notice of a storage's death."""
        live = self._live.get(ref.key) if isinstance(ref, _Ref) else None
        if live is None or live.ref is not ref:
            return
        del self._live[ref.key]
        dies = self._now()
        for value in self._of_storage[live.storage]:
            self.values[value].dies = dies


def _key(tensor: torch.Tensor) -> tuple[int, Any]:
    """Return an address and the object whose death ends its use: the storage, else the tensor itself."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse, or of another backend: no storage to be had
        return id(tensor), tensor
    return storage._cdata, storage


def view_of(tensor: torch.Tensor) -> View | None:
    """Return how a tensor shows its storage; None if it has no strides."""
    try:
        return tensor.shape, tensor.stride(), int(tensor.storage_offset()), tensor.dtype
    except RuntimeError:
        return None


def _view_of_none(tensor: torch.Tensor) -> View:
    try:
        return tuple(tensor.shape), (), 0, tensor.dtype
    except RuntimeError:  # of nested tensors that have no strides
        return (), (), 0, tensor.dtype
