"""Dropout on a CPU with masks from 16-bit numbers, four of which one draw of 64 bits gives.

What it cures
    `dropout-draws`: on CPUs that are not Intel's torch draws the mask of a dropout number by number on one core.

When it does not help
    On a GPU, and within what torch.compile compiles: both make masks of their own. For fewer than 16,384 elements
    torch's is used, whose call takes less.

Cost
    None: the mask takes the memory that torch's takes.

Numerics
    Other elements are dropped than by torch with the same seed, as many and as independent of each other. The share is
    rounded to a multiple of 1/65536, and what stays is scaled by the rounded share, so that means are kept exactly.

Example::

    import torch.nn.functional

    from diagnose.kernels.dropout import fast_dropout

    torch.nn.functional.dropout = fast_dropout  # nn.Dropout calls it, too
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["fast_dropout"]

LEVELS = 1 << 16
MIN_ELEMENTS = 1 << 14
_torch_dropout = functional.dropout  # which this function may be put in the place of


def fast_dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Do what ``torch.nn.functional.dropout`` does, with the same arguments; ``input`` has any shape and layout.

    Raises:
        ValueError: ``p`` is not within 0 to 1, as torch says.
    """
    dropped = round(p * LEVELS) if 0 <= p <= 1 else 0
    is_plain = input.device.type == "cpu" and input.is_floating_point() and input.layout is torch.strided
    is_drawn = training and 0 < dropped < LEVELS and input.numel() >= MIN_ELEMENTS
    if torch.compiler.is_compiling() or not (is_plain and is_drawn):
        return _torch_dropout(input, p, training, inplace)
    mask = _mask(input, dropped)
    return input.mul_(mask) if inplace else input * mask


def _mask(input: Tensor, dropped: int) -> Tensor:
    """Return 0 for each element that is dropped and the scale for the others, in the input's type and strides."""
    num = input.numel()
    draws = torch.empty((num + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    numbers = draws.view(torch.int16)[:num]
    mask = torch.empty_like(input, requires_grad=False).detach()
    torch.ge(numbers, dropped - LEVELS // 2, out=mask.as_strided((num,), (1,)))
    return mask.mul_(LEVELS / (LEVELS - dropped))
