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

    def add_to(self, bucket: Bucket, names: list[str]) -> None:
        """Add what is kept for these parameters to the bucket."""
        known = [(part, self.by_name[name]) for name, part in _parts(bucket, names) if name in self.by_name]
        if known:
            torch._foreach_add_([part for part, _ in known], [kept for _, kept in known])

    def keep(self, bucket: Bucket, names: list[str], left: Tensor) -> None:
        """Remember ``left``, flat and as long as the bucket; what is not finite is forgotten.

        A step whose gradients overflowed would otherwise spoil all that follow.
        """
        left = torch.where(torch.isfinite(left), left, 0.0)
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
    """Yield each gradient as a flat stretch of the bucket, whatever its strides are."""
    whole = bucket.buffer()
    for name, gradient in zip(names, bucket.gradients(), strict=True):
        start = gradient.storage_offset() - whole.storage_offset()
        yield name, whole[start : start + gradient.numel()]
