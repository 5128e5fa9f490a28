"""Shapes of tensors, and how many elements they have."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TypeAlias

Shape: TypeAlias = tuple[int, ...]

MAX_ELEMENTS = 2**50  # 1 PB of bytes, which no memory has; some thousand such numbers still add up within int64


def num_elements(shape: Iterable[int]) -> int:
    """Return the number of elements of a tensor, 1 for a scalar; at most ``MAX_ELEMENTS``, whatever the sizes are.

    Sizes come from a file, and those of several tensors are combined: an exact product need not fit into any column.
    """
    return max(0, min(prod(shape), MAX_ELEMENTS))
