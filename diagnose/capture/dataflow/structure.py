"""What the whole content of a tensor is: constant, one-hot, triangular, padded, or of rows that repeat.

Each question begins with a few elements that decide it for nearly every tensor.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from diagnose.capture.dataflow.bits import Bits
from diagnose.capture.dataflow.positions import spread
from diagnose.model.intervals import distinct

__all__ = ["Kind", "Structure", "is_constant", "structure"]

Kind: TypeAlias = Literal["", "one-hot", "triangular", "constant"]

MAX_ELEMENTS = 1 << 22  # that are compared where the first few show a structure: 2 ms
MAX_COUNTED = 1 << 17  # integers that are counted one by one: 0.3 ms
MAX_ROWS = 64  # that are looked at first
MIN_SIDE = 4  # of a triangle: smaller ones come about by chance


class Structure(NamedTuple):
    """Shares are -1 where they are not known."""

    kind: Kind = ""
    padded: float = -1.0
    repeated_rows: float = -1.0


def is_constant(sample: bytes, bits: Bits) -> bool:
    """Return whether all elements are the same; ``sample`` holds some of them."""
    size = bits.itemsize
    if sample != sample[:size] * (len(sample) // size):
        return False
    return bits.size <= MAX_ELEMENTS and bool((bits == bits.flat[0]).all())


def structure(bits: Bits, one: int, *, is_integer: bool) -> Structure:
    """Return what a content is that is not constant; ``one`` is how its dtype codes 1."""
    if bits.ndim < 2:
        return Structure(repeated_rows=_repeated_numbers(bits)) if bits.ndim and is_integer else Structure()
    if bits.shape[-1] < 2:
        return Structure()
    rows = bits.reshape(-1, bits.shape[-1])
    if _is_one_hot(rows, one):
        return Structure("one-hot")
    kind: Kind = "triangular" if _is_triangular(bits) else ""
    return Structure(kind, _padded(rows), _repeated_rows(bits))


def _is_one_hot(rows: Bits, one: int) -> bool:
    if np.count_nonzero(rows[0]) != 1:
        return False
    some = rows[:: max(len(rows) // MAX_ROWS, 1)]
    return bool(((some != 0).sum(1) == 1).all() and (some.max(1) == one).all())


def _is_triangular(bits: Bits) -> bool:
    """Return whether all above the diagonal of each matrix, or all below it, is one number that the rest is not."""
    side = bits.shape[-1]
    if side < MIN_SIDE or bits.shape[-2] != side or bits.size > MAX_ELEMENTS:
        return False
    matrices = bits.reshape(-1, side, side)
    first = matrices[0]
    upper, lower = first[0, -1], first[-1, 0]
    if upper == lower:
        return False
    if (first[0, 1:] == upper).all():
        return bool((matrices[:, _above(side)] == upper).all())
    if (first[1:, 0] == lower).all():
        return bool((matrices[:, _above(side).T] == lower).all())
    return False


@lru_cache(maxsize=8)
def _above(side: int) -> npt.NDArray[np.bool_]:
    above: npt.NDArray[np.bool_] = ~np.tri(side, dtype=np.bool_)
    return above


def _padded(rows: Bits) -> float:
    """Return the share of columns at the end that hold one number in all rows."""
    last = rows[:: max(len(rows) // MAX_ROWS, 1), -1]
    number = last[0]
    if len(rows) < 2 or not (last == number).all():
        return 0.0
    if rows.size > MAX_ELEMENTS:
        return -1.0
    differ = np.flatnonzero((rows != number).any(0))
    width = rows.shape[-1]
    return (width - 1 - int(differ[-1])) / width if len(differ) else 1.0


def _repeated_numbers(bits: Bits) -> float:
    """Return the share of integers that equal an earlier one; of many at least so many."""
    if bits.size <= MAX_COUNTED:
        return 1.0 - len(distinct(bits.astype(np.int64))) / bits.size
    most = int(bits.max()) - int(bits.min()) + 1  # of negative ones the bits are large: then nothing is known
    return max(0.0, 1.0 - most / bits.size)


def _repeated_rows(bits: Bits) -> float:
    """Return the share of the first rows, along the first dimension, that equal an earlier one of them."""
    if len(bits) < 2:
        return -1.0
    rows = bits[:MAX_ROWS].reshape(min(len(bits), MAX_ROWS), -1)
    width = rows.shape[1]
    if len(set(rows[:, width // 2].tolist())) == len(rows) or _num_different(rows[:, spread(width, 8)]) == len(rows):
        return 0.0
    return 1.0 - _num_different(rows) / len(rows) if rows.size <= MAX_ELEMENTS else -1.0


def _num_different(rows: Bits) -> int:
    whole = np.ascontiguousarray(rows).tobytes()
    size = len(whole) // len(rows)
    return len({whole[i : i + size] for i in range(0, len(whole), size)})
