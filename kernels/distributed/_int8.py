"""Gradients in 8 bits: quantised in blocks, gathered from all ranks, and summed here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from diagnose.kernels.distributed._gathered import Gathered

__all__ = ["Int8", "dequantised", "quantised"]

LEVELS = 127


class Int8(Gathered):
    """Sends each gradient in 8 bits and one scale for each ``block`` of elements; what rounding drops is sent later.

    Raises:
        ValueError: ``block`` is less than one; or the model has more than eight ranks, where it would send more than
            a plain all-reduce.
    """

    name = "int8"
    max_ranks = 8  # all-gather receives (ranks - 1) bytes an element, an all-reduce of float32 8 · (ranks - 1) / ranks

    def __init__(self, *, block: int = 1024, error_feedback: bool = True) -> None:
        if block < 1:
            raise ValueError(f"The hook 'int8' needs block >= 1, not {block}.")
        super().__init__(error_feedback=error_feedback)
        self.block = block

    def packed(self, values: Tensor) -> Tensor:
        """Return the values in 8 bits, then the scales."""
        return quantised(values, self.block)

    def add_unpacked(self, packed: Tensor, total: Tensor, dtype: torch.dtype) -> None:
        """Add the rounded values."""
        total += dequantised(packed, self.block)[: len(total)]

    def state_dict(self) -> dict[str, Any]:
        """Return what rounding has dropped so far, in this rank."""
        return {"residuals": self.residuals.state_dict()}


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
