"""Gradients in 8 bits: quantised in blocks, gathered from all ranks, and summed here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.futures import Future
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed._hook import Bucket, CommHook, Rounds, all_gather, run_rounds
from diagnose.kernels.distributed._residuals import Residuals

__all__ = ["Int8", "dequantised", "quantised"]

LEVELS = 127
MAX_RANKS = 8
"""All-gather receives (ranks - 1) bytes an element, an all-reduce of float32 8 · (ranks - 1) / ranks: equal at 8."""


class Int8(CommHook):
    """Sends each gradient in 8 bits and one scale for each ``block`` of elements; what rounding drops is sent later.

    Raises:
        ValueError: ``block`` is less than one; or the model has more than eight ranks, where it would send more than
            a plain all-reduce.
    """

    name = "int8"

    def __init__(self, *, block: int = 1024, error_feedback: bool = True) -> None:
        super().__init__()
        if block < 1:
            raise ValueError(f"The hook 'int8' needs block >= 1, not {block}.")
        self.block, self.error_feedback = block, error_feedback
        self.residuals = Residuals()
        self._parameters: dict[str, Tensor] = {}

    def check(self, ddp: DistributedDataParallel) -> None:
        """Refuse more ranks than it helps."""
        if ddp.process_group.size() > MAX_RANKS:
            raise ValueError(
                f"The hook 'int8' gathers from each rank, and with {ddp.process_group.size()} of them receives no less "
                f"than an all-reduce; use it for up to {MAX_RANKS}, else 'bf16' or 'power_sgd'."
            )
        self._parameters = dict(ddp.module.named_parameters())

    def __call__(self, bucket: Bucket) -> Future[Tensor]:
        """Quantise, gather, sum."""
        return run_rounds(self._rounds(bucket), self.group, bucket.buffer().device)

    def _rounds(self, bucket: Bucket) -> Rounds:
        buffer, num_ranks = bucket.buffer(), self.group.size()
        names = self.names_of(bucket)
        if self.error_feedback:
            self.residuals.add_to(bucket, names)
        packed = quantised(buffer, self.block)
        if self.error_feedback:
            left = self.residuals.room(bucket, names)
            torch.sub(buffer, dequantised(packed, self.block)[: len(buffer)].to(buffer.dtype), out=left)
            self.residuals.keep(bucket, names, left)
        self.count(bucket, packed)
        everyones = packed.new_empty(num_ranks * len(packed))
        yield lambda: all_gather(everyones, packed, group=self.group, async_op=True), (packed, everyones)
        mean = dequantised(everyones[: len(packed)], self.block)
        for rank in range(1, num_ranks):
            mean += dequantised(everyones[rank * len(packed) : (rank + 1) * len(packed)], self.block)
        buffer.copy_(mean.div_(num_ranks)[: len(buffer)])
        return buffer

    def state_dict(self) -> dict[str, Any]:
        """Return what rounding has dropped so far, in this rank."""
        return {"residuals": self.residuals.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state back."""
        if set(state_dict) != {"residuals"}:
            raise ValueError(f"The hook 'int8' was handed a state with {sorted(state_dict)}, which is another hook's.")
        self.residuals.load_state_dict(state_dict["residuals"], self._parameters)


def quantised(values: Tensor, block: int) -> Tensor:
    """Return the bytes of ``values`` (flat): rounded to 8 bits, then one float32 scale for each block."""
    short = -len(values) % block
    whole = (functional.pad(values.float(), (0, short)) if short else values.float()).view(-1, block)
    least, most = torch.aminmax(whole, dim=1, keepdim=True)
    scale = torch.maximum(most, -least) / LEVELS
    steps = whole / torch.where(scale == 0, 1.0, scale)
    rounded = steps.nan_to_num_(nan=1.0).round_().to(torch.int8)
    scales = scale.view(-1).clone(memory_format=torch.contiguous_format)
    return torch.cat([rounded.view(torch.uint8).view(-1), scales.view(torch.uint8)])


def dequantised(packed: Tensor, block: int) -> Tensor:
    """Return the values of ``quantised``, with its padding; blocks that were not finite are not so here either."""
    num_blocks = len(packed) // (block + 4)
    rounded = packed[: num_blocks * block].view(torch.int8).view(num_blocks, block)
    scale = packed[num_blocks * block :].clone().view(torch.float32).view(num_blocks, 1)
    return rounded.float().mul_(scale).view(-1)
