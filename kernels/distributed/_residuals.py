"""What compression left out of the gradients, kept for the next step (error feedback)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from diagnose.kernels.distributed._hook import Bucket

__all__ = ["Residuals"]


class Residuals:
    """Holds one flat tensor for each parameter's name, whatever bucket it is in: DDP rebuilds buckets after a step."""

    def __init__(self) -> None:
        self.by_name: dict[str, Tensor] = {}
        self._rooms: dict[tuple[str, ...], Tensor] = {}

    def room(self, bucket: Bucket, names: list[str]) -> Tensor:
        """Return memory for what is left of this bucket, flat and as long: the same in each step.

        It may hold what was left before, so add that to the bucket first.
        """
        key, buffer = tuple(names), bucket.buffer()
        known = self._rooms.get(key)
        if known is None or known.shape != buffer.shape or known.dtype != buffer.dtype:
            for other in [other for other in self._rooms if not set(key).isdisjoint(other)]:
                del self._rooms[other]  # of buckets that were rebuilt
            known = self._rooms[key] = torch.empty_like(buffer)
        return known

    def add_to(self, bucket: Bucket, names: list[str]) -> None:
        """Add what is kept for these parameters to the bucket."""
        known = [(part, self.by_name[name]) for name, part in _parts(bucket, names) if name in self.by_name]
        if known:
            torch._foreach_add_([part for part, _ in known], [kept for _, kept in known])

    def keep(self, bucket: Bucket, names: list[str], left: Tensor) -> None:
        """Remember ``left``, which is the bucket's room, filled; what is not finite becomes zero.

        A step whose gradients overflowed would otherwise spoil all that follow.
        """
        left.nan_to_num_(0.0, 0.0, 0.0)
        whole = bucket.buffer()
        for name, part in _parts(bucket, names):
            start = part.storage_offset() - whole.storage_offset()
            self.by_name[name] = left[start : start + part.numel()]

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies by parameter name."""
        return {name: kept.clone() for name, kept in self.by_name.items()}

    def load_state_dict(self, state: Mapping[str, Tensor], sizes: Mapping[str, Tensor]) -> None:
        """Take the state back; ``sizes`` are the model's parameters by name.

        Raises:
            ValueError: a name or a size is not the model's.
        """
        for name, kept in state.items():
            if name not in sizes or sizes[name].numel() != kept.numel():
                raise ValueError(f"The state holds {name!r} with {kept.numel()} elements, which this model lacks.")
        self.by_name = {name: kept.to(sizes[name].device, copy=True) for name, kept in state.items()}


def _parts(bucket: Bucket, names: list[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield each gradient as a flat slice of the bucket, whatever its strides are."""
    whole = bucket.buffer()
    for name, gradient in zip(names, bucket.gradients(), strict=True):
        start = gradient.storage_offset() - whole.storage_offset()
        yield name, whole[start : start + gradient.numel()]
