"""How tensors lie in memory before a program reads them, and how many elements one program takes."""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = [
    "ELEMENTS",
    "compute_dtype",
    "flat_grid",
    "like",
    "num_processors",
    "row_block",
    "rows_of",
    "tile_of",
    "torch_compute_dtype",
    "warps",
]

ELEMENTS = 1024  # of one program over a flat tensor: eight a thread at four warps, two 128-bit reads in 16 bits
MAX_BLOCK = 16_384  # elements of a row that one program holds; longer rows are walked through


def compute_dtype(tensor: Tensor) -> tl.dtype:
    """Return what a program calculates in: float64 for float64, float32 for everything narrower."""
    return tl.float64 if tensor.dtype == torch.float64 else tl.float32


def torch_compute_dtype(tensor: Tensor) -> torch.dtype:
    """Return torch's name of what a program calculates in, for the buffers that keep such numbers."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def like(tensor: Tensor, layout: Tensor) -> Tensor:
    """Return ``tensor`` with the strides of ``layout``, which is dense: itself where it has them, else a copy."""
    return tensor if tensor.stride() == layout.stride() else torch.empty_like(layout, dtype=tensor.dtype).copy_(tensor)


def flat_grid(num: int) -> tuple[int]:
    """Return the grid over ``num`` elements, one at least."""
    return (triton.cdiv(num, ELEMENTS),)


def rows_of(tensor: Tensor, width: int) -> Tensor:
    """Return ``tensor`` as (rows, width) with neighbouring columns next to each other; a copy only where needed."""
    rows = tensor.reshape(math.prod(tensor.shape[:-1]), width)
    return rows if rows.stride(1) == 1 or width == 1 else rows.contiguous()


def tile_of(width: int, elements: int) -> tuple[int, int]:
    """Return rows and columns of a tile of so many elements, as wide as rows of this width have use for."""
    columns = min(triton.next_power_of_2(max(width, 1)), elements)
    return elements // columns, columns


@functools.cache
def num_processors(device: torch.device) -> int:
    """Return how many multiprocessors the device has; the interpreter's are few, and still leave partial sums."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def row_block(width: int, most: int = MAX_BLOCK) -> tuple[int, bool]:
    """Return how many columns a program holds at once, and whether those are all."""
    block = triton.next_power_of_2(max(width, 1))
    most = min(most, MAX_BLOCK)
    return min(block, most), block <= most


def warps(block: int, elements: int = 16) -> int:
    """Return the warps for a block of a row with so many elements a thread, within what a program may have."""
    return min(max(block // (32 * elements), 1), 16)
