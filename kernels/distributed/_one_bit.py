"""Gradients as signs, with one magnitude for each block (Seide et al. 2014; with error feedback, arXiv:1901.09847)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from diagnose.kernels.distributed._gathered import Gathered
from diagnose.kernels.distributed._power_sgd import WARM_UP_STEPS

__all__ = ["OneBit", "signs", "values_of_signs"]

BITS = 8  # of a byte


class OneBit(Gathered):
    """Sends each gradient's sign, and the mean magnitude of each ``block`` of elements; the rest is sent later.

    Raises:
        ValueError: ``block`` is no positive multiple of 8, or ``warm_up`` is negative; or the model has more than 56
            ranks, where gathering receives more than an all-reduce.
    """

    name = "one_bit"
    max_ranks = 56  # an eighth of a byte and a share of a scale an element; 8 / ranks for an all-reduce of float32

    def __init__(self, *, block: int = 1024, warm_up: int = WARM_UP_STEPS, error_feedback: bool = True) -> None:
        if block < 1 or block % BITS:
            raise ValueError(f"The hook 'one_bit' needs a block of a multiple of 8 elements, not {block}.")
        super().__init__(error_feedback=error_feedback, warm_up=warm_up)
        self.block = block

    def packed(self, values: Tensor) -> Tensor:
        """Return the signs, then the magnitudes."""
        return signs(values, self.block)

    def add_unpacked(self, packed: Tensor, total: Tensor, dtype: torch.dtype) -> None:
        """Add each block's magnitude with its signs."""
        total += values_of_signs(packed, self.block)[: len(total)]


def signs(values: Tensor, block: int) -> Tensor:
    """Return the bytes of ``values`` (flat): a bit an element, set below zero, then a float32 mean for each block."""
    short = -len(values) % block
    whole = (functional.pad(values.float(), (0, short)) if short else values.float()).view(-1, block)
    magnitude = whole.abs().sum(1)
    magnitude[:-1] /= block
    magnitude[-1:] /= block - short  # the padding is none of its values
    bits = (whole < 0).view(-1, BITS).to(torch.uint8) << torch.arange(BITS, dtype=torch.uint8, device=values.device)
    return torch.cat([bits.sum(1, dtype=torch.uint8), magnitude.view(torch.uint8)])


def values_of_signs(packed: Tensor, block: int) -> Tensor:
    """Return the values of ``signs``, with its padding; blocks that were not finite are not so here either."""
    num_blocks = len(packed) // (block // BITS + 4)
    split = num_blocks * block // BITS
    magnitude = packed[split:].clone().view(torch.float32).view(num_blocks, 1)
    bits = packed[:split].view(-1, 1) >> torch.arange(BITS, dtype=torch.uint8, device=packed.device) & 1
    return (magnitude * (1.0 - 2.0 * bits.view(num_blocks, block))).view(-1)
