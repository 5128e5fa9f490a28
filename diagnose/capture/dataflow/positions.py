"""Which elements of a large tensor are looked at: always the same for a shape, and without a random generator."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["COLUMNS", "MAX_SAMPLE", "NEIGHBOURS", "ROWS", "extent", "has_rows", "offsets"]

MAX_SAMPLE = 256  # elements; a tensor with no more is looked at as a whole
ROWS, COLUMNS = 32, 8  # of a sample of a tensor with as many of each
NEIGHBOURS = 16  # of the rows: neighbours are equal where each row is repeated
_GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples spread evenly, and are no multiples of a row's length

Offsets = npt.NDArray[np.int64]


def has_rows(shape: tuple[int, ...]) -> bool:
    """Return whether a sample of a tensor of this shape consists of whole rows' parts."""
    return len(shape) > 1 and shape[-1] >= COLUMNS and math.prod(shape[:-1]) >= ROWS


def extent(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Return how many elements lie between the first and the last one of a strided tensor, both included."""
    return 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))


@lru_cache(maxsize=4096)
def offsets(shape: tuple[int, ...], stride: tuple[int, ...]) -> Offsets:
    """Return where the elements of a sample lie, counted in elements from the tensor's first one."""
    num = math.prod(shape)
    if num <= MAX_SAMPLE:
        flat = np.arange(num)
    elif has_rows(shape):
        width, height = shape[-1], num // shape[-1]
        start = int(height * _GOLDEN) % (height - NEIGHBOURS + 1)
        others = _spread(height - NEIGHBOURS, ROWS - NEIGHBOURS)
        rows = np.concatenate([start + np.arange(NEIGHBOURS), others + NEIGHBOURS * (others >= start)])
        flat = (rows[:, None] * width + _spread(width, COLUMNS)).ravel()
    else:
        flat = _spread(num, MAX_SAMPLE)
    found: Any = np.zeros(len(flat), np.int64)
    for place, step in zip(np.unravel_index(flat, shape), stride, strict=True):
        found += place * step
    return found


def _spread(num: int, wanted: int) -> Offsets:
    """Return so many different numbers below ``num``, in order and spread evenly."""
    found = np.unique((np.modf((np.arange(wanted) + 1) * _GOLDEN)[0] * num).astype(np.int64))
    if len(found) == wanted:
        return found
    return np.linspace(0, num - 1, wanted).astype(np.int64)  # of few: as far apart as can be
