"""Which elements of a large tensor are looked at: always the same for a shape, and without a random generator."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from diagnose.model.intervals import distinct
from diagnose.model.shapes import num_elements

__all__ = ["MAX_SAMPLE", "Positions", "extent", "offsets", "spread"]

MAX_SAMPLE = 256  # elements; a tensor with no more is looked at as a whole
RUN = 4  # of them side by side, in one line of the cache: reading what lies in no cache is most of the time
_GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples spread evenly, and fall into all columns of a matrix

Positions = npt.NDArray[np.int64]


def extent(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Return how many elements lie between the first and the last one of a strided tensor, both included."""
    return 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))


@lru_cache(maxsize=4096)
def offsets(shape: tuple[int, ...], stride: tuple[int, ...]) -> Positions:
    """Return where the elements of a sample lie, counted in elements from the tensor's first one."""
    num = num_elements(shape)
    if not shape:
        return np.zeros(1, np.int64)
    flat = spread(num, MAX_SAMPLE)
    if num > MAX_SAMPLE:
        flat = (spread(num // RUN, MAX_SAMPLE // RUN)[:, None] * RUN + np.arange(RUN)).ravel()
    found: Positions = np.zeros(len(flat), np.int64)
    for place, step in zip(np.unravel_index(flat, shape), stride, strict=True):
        found = found + place * step
    return found


@lru_cache(maxsize=4096)
def spread(num: int, most: int) -> Positions:
    """Return at most so many numbers below ``num``, in order: all, or some that are spread evenly."""
    if num <= most:
        return np.arange(num)
    found: Positions = distinct((np.modf((np.arange(most) + 1) * _GOLDEN)[0] * num).astype(np.int64))
    return found if len(found) == most else np.linspace(0, num - 1, most).astype(np.int64)
