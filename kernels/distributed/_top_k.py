"""The largest gradients of each bucket, with their places (Aji and Heafield 2017, arXiv:1704.05021)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from diagnose.kernels.distributed._gathered import Gathered
from diagnose.kernels.distributed._power_sgd import WARM_UP_STEPS

__all__ = ["TopK"]

INDEX = torch.int32  # a bucket of DDP holds fewer than 2^31 elements


class TopK(Gathered):
    """Sends the share ``density`` of each bucket's gradients, those of the largest magnitude; others are sent later.

    Raises:
        ValueError: ``density`` is not above 0 and at most 0.5, or ``warm_up`` is negative; or the model has more ranks
            than 1 / ``density``, where gathering receives more than an all-reduce.
    """

    name = "top_k"

    def __init__(self, *, density: float = 0.05, warm_up: int = WARM_UP_STEPS, error_feedback: bool = True) -> None:
        super().__init__(error_feedback=error_feedback, warm_up=warm_up)
        if not 0 < density <= 0.5:
            raise ValueError(f"The hook 'top_k' needs a density above 0 and of 0.5 at most, not {density}.")
        self.density = density
        # A value and its index are 8 bytes: 8 · density · (ranks - 1) an element, where an all-reduce of float32
        # receives 8 · (ranks - 1) / ranks.
        self.max_ranks = int(1 / density)

    def packed(self, values: Tensor) -> Tensor:
        """Return the values, then the places; what is not finite counts as large, so an overflow is seen."""
        num = min(max(math.ceil(self.density * len(values)), 1), len(values))
        places = torch.topk(values.abs(), num, sorted=False).indices
        return torch.cat([values[places].view(torch.uint8), places.to(INDEX).view(torch.uint8)])

    def add_unpacked(self, packed: Tensor, total: Tensor, dtype: torch.dtype) -> None:
        """Add the values at their places, each of which occurs once."""
        split = len(packed) * dtype.itemsize // (dtype.itemsize + INDEX.itemsize)
        values, places = packed[:split].clone().view(dtype), packed[split:].clone().view(INDEX)
        total.index_add_(0, places, values.to(total.dtype))
