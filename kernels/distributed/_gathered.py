"""Hooks that pack a bucket, gather what all ranks packed, and sum it: what packing drops is sent later."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed._compressing import Compressing
from diagnose.kernels.distributed._hook import Bucket, Rounds, all_gather

__all__ = ["Gathered"]


class Gathered(Compressing):
    """Gathers packed gradients; with ``error_feedback`` what packing drops is added to the next step's.

    The first ``warm_up`` steps reduce gradients as DDP does.
    """

    max_ranks: int
    """From here on gathering receives more than an all-reduce of float32 would."""

    def __init__(self, *, error_feedback: bool, warm_up: int = 0) -> None:
        super().__init__(error_feedback=error_feedback, warm_up=warm_up)
        if warm_up < 0:
            raise ValueError(f"The hook {self.name!r} needs warm_up >= 0, not {warm_up}.")

    @abstractmethod
    def packed(self, values: Tensor) -> Tensor:
        """Return flat ``values`` as bytes, equally many on all ranks."""

    @abstractmethod
    def add_unpacked(self, packed: Tensor, total: Tensor, dtype: torch.dtype) -> None:
        """Add what ``packed`` holds of values of ``dtype`` to ``total``, flat and in float32 at least."""

    def check(self, ddp: DistributedDataParallel) -> None:
        """Refuse more ranks than it helps."""
        if ddp.process_group.size() > self.max_ranks:
            raise ValueError(
                f"The hook {self.name!r} gathers from each rank, and with {ddp.process_group.size()} of them receives "
                f"no less than an all-reduce; use it for up to {self.max_ranks}, else 'bf16' or 'power_sgd'."
            )
        super().check(ddp)

    def rounds(self, bucket: Bucket) -> Rounds:
        """Gather what every rank packed, and sum it."""
        buffer, num_ranks = bucket.buffer(), self.group.size()
        names = self.names_of(bucket)
        if self.error_feedback:
            self.residuals.add_to(bucket, names)
        packed = self.packed(buffer)
        if self.error_feedback:
            left = self.residuals.room(bucket, names)
            torch.sub(buffer, self._sum([packed], buffer).to(buffer.dtype), out=left)
            self.residuals.keep(bucket, names, left)
        self.count(bucket, packed)
        everyones = packed.new_empty(num_ranks * len(packed))
        yield lambda: all_gather(everyones, packed, group=self.group, async_op=True), (packed, everyones)
        parts = torch.split(everyones, len(packed))
        buffer.copy_(self._sum(parts, buffer).div_(num_ranks))
        return buffer

    def _sum(self, parts: Sequence[Tensor], like: Tensor) -> Tensor:
        total = torch.zeros(len(like), dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
        for packed in parts:
            self.add_unpacked(packed, total, like.dtype)
        return total
