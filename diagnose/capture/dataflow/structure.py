"""What the whole content of a tensor is: constant, one-hot, triangular, padded, or of rows that repeat.

A few elements, read at once, decide each question for nearly every tensor; only where they may show a structure is the
whole content compared.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from diagnose.capture.dataflow.bits import Bits
from diagnose.capture.dataflow.positions import Positions, spread
from diagnose.model.intervals import distinct
from diagnose.model.shapes import num_elements

__all__ = ["Kind", "Structure", "is_constant", "runs_at_start", "structure", "zero_rows"]

Kind: TypeAlias = Literal["", "one-hot", "triangular", "constant"]

MAX_ELEMENTS = 1 << 22  # of which the padded ones are counted where the first few show some: 2 ms
MAX_COMPARED = 1 << 17  # that are compared one by one for any other question: of more some, spread evenly
MAX_COUNTED = 1 << 17  # integers that are counted one by one: 0.3 ms
MAX_ROWS = 64  # that are compared with each other
MIN_SIDE = 4  # of a triangle: smaller ones come about by chance
_LAST, _FIRST = 8, 16  # elements of the last column and of the first row that are read first
_RUN = 64  # elements side by side where some of a large tensor are compared


class Structure(NamedTuple):
    """Shares are -1 where they are not known."""

    kind: Kind = ""
    padded: float = -1.0
    evenly_padded: float = -1.0
    repeated_rows: float = -1.0
    zero_rows: float = -1.0
    padded_rows: float = -1.0


def zero_rows(bits: Bits) -> float:
    """Return the share of rows (of all dimensions but the last), some of all, that hold positive zeros throughout."""
    if bits.ndim < 2 or bits.shape[-1] < 2:
        return -1.0
    if 0 not in bits.reshape(-1).take(_middle(bits.shape)).tolist():
        return 0.0
    rows = bits.reshape(-1, bits.shape[-1])
    some = rows[:: max(len(rows) // MAX_ROWS, 1)]
    return float(np.count_nonzero(~some.any(1))) / len(some)


@lru_cache(maxsize=4096)
def _middle(shape: tuple[int, ...]) -> Positions:
    """Return where the middle elements of the rows lie that are looked at, in a dense tensor."""
    width, height = shape[-1], num_elements(shape[:-1])
    return np.arange(0, height, max(height // MAX_ROWS, 1)) * width + width // 2


def is_constant(sample: bytes, bits: Bits) -> bool:
    """Return whether all elements are the same; ``sample`` holds some of them."""
    size = bits.itemsize
    if sample != sample[:size] * (len(sample) // size):
        return False
    bits = bits.reshape(-1)
    some = bits
    if bits.size > MAX_COMPARED:
        num = bits.size // _RUN
        some = bits[: num * _RUN].reshape(num, _RUN)[spread(num, MAX_ROWS * 4)]
    return bool((some == bits[0]).all())


def structure(bits: Bits, one: int, *, is_integer: bool) -> Structure:
    """Return what a content is that is not constant; ``one`` is how its dtype codes 1."""
    if bits.ndim < 2:
        return Structure(repeated_rows=_repeated_numbers(bits)) if bits.ndim and is_integer else Structure()
    width = bits.shape[-1]
    if width < 2:
        return Structure()
    probe = bits.reshape(-1).take(_probe(bits.shape)).tolist()
    num_rows = min(len(bits), MAX_ROWS)
    of_rows, of_last = probe[:num_rows], probe[num_rows : num_rows + _LAST]
    of_start, others = probe[num_rows + _LAST : num_rows + 2 * _LAST], probe[num_rows + 2 * _LAST :]
    of_first, corners = others[:_FIRST], others[_FIRST:]
    rows = bits.reshape(-1, width)
    if sum(map(bool, of_first)) < 2 and _is_one_hot(rows, one):
        return Structure("one-hot")
    return Structure(
        "triangular" if _may_be_triangular(corners) and _is_triangular(bits) else "",
        *(_padded(rows) if len(rows) > 1 and 1 in (len(set(of_last)), len(set(of_start))) else (0.0, 0.0)),
        -1.0 if num_rows < 2 else _repeated_rows(bits) if len(set(of_rows)) < num_rows else 0.0,
        zero_rows(bits),
        _padded_rows(bits) if bits.ndim == 3 else -1.0,
    )


@lru_cache(maxsize=4096)
def _probe(shape: tuple[int, ...]) -> Positions:
    """Return which elements of a dense tensor are read first.

    They are one of each of the first rows (of the first dimension), some of the last column, of the first column and of
    the first row, and for square matrices those beside the ends of the diagonal, as often as these groups have places.
    """
    width, height = shape[-1], num_elements(shape[:-1])
    size = height * width // shape[0]
    rows = np.arange(min(shape[0], MAX_ROWS)) * size + size // 2
    start = np.resize(spread(height, _LAST), _LAST) * width
    first = spread(width, _FIRST)
    padding = np.resize(first[-1:], _FIRST - len(first)) if len(first) < _FIRST else first[:0]
    is_square = width >= MIN_SIDE and shape[-2] == width
    corners = np.array([width - 1, 1, (width - 1) * width, width] if is_square else [], np.int64)
    return np.concatenate([rows, start + width - 1, start, first, padding, corners])


def _is_one_hot(rows: Bits, one: int) -> bool:
    some = rows[:: max(len(rows) // MAX_ROWS, 1)]
    return bool(((some != 0).sum(1) == 1).all() and (some.max(1) == one).all())


def _may_be_triangular(corners: list[int]) -> bool:
    if not corners:
        return False
    upper, beside_upper, lower, beside_lower = corners
    return upper != lower and (upper == beside_upper or lower == beside_lower)


def _is_triangular(bits: Bits) -> bool:
    """Return whether all above the diagonal of each matrix is one number; if the first row is not, all below it."""
    side = bits.shape[-1]
    matrices = bits.reshape(-1, side, side)
    upper, lower = matrices[0, 0, -1], matrices[0, -1, 0]
    is_lower = bool((matrices[0, 0, 1:] == upper).all())
    if not is_lower:
        matrices, upper = matrices.transpose(0, 2, 1), lower
        if not (matrices[0, 0, 1:] == upper).all():
            return False
    rows, columns = _some_above(side)
    if not (matrices[:, rows, columns] == upper).all():
        return False
    num = max(MAX_COMPARED // (side * side), 1)
    some = matrices[:num]
    return side * side <= MAX_ELEMENTS and bool((some[:, _above(side)] == upper).all())


@lru_cache(maxsize=64)
def _some_above(side: int) -> tuple[Positions, Positions]:
    """Return some places above the diagonal of a matrix."""
    num = side * (side - 1) // 2
    places = spread(num, _FIRST)
    rows = side - 2 - (np.sqrt(8 * (num - 1 - places) + 1).astype(np.int64) - 1) // 2
    return rows, places - rows * (2 * side - rows - 1) // 2 + rows + 1


@lru_cache(maxsize=8)
def _above(side: int) -> npt.NDArray[np.bool_]:
    above: npt.NDArray[np.bool_] = ~np.tri(side, dtype=np.bool_)
    return above


def _padded(rows: Bits) -> tuple[float, float]:
    """Return which share of the columns, at either end, hold one number in all rows; second: of rows of one length."""
    if rows.size > MAX_ELEMENTS:
        return -1.0, -1.0
    width, shares = rows.shape[-1], [0.0, 0.0]
    for runs in (runs_at_start(rows[:, ::-1]), runs_at_start(rows)):
        least = int(runs.min())
        shares[least < width and bool((runs == least).all())] += least / width
    return min(shares[0], 1.0), shares[1]


def _padded_rows(bits: Bits) -> float:
    """Return which share of the second dimension, at either end, holds one number in all of the first and third.

    What is there in all of the first dimension alike is no padding.
    """
    if bits.size > MAX_ELEMENTS:
        return -1.0
    share = 0.0
    for each in (bits[:, ::-1], bits):
        if not (each[:, 0] == each[0, 0, 0]).all():
            continue
        differs = (each != each[0, 0, 0]).any(2)
        runs = np.where(differs.any(1), differs.argmax(1), bits.shape[1])
        least = int(runs.min())
        share += least / bits.shape[1] if least < bits.shape[1] and bool((runs != least).any()) else 0.0
    return min(share, 1.0)


def runs_at_start(rows: Bits) -> Positions:
    """Return how many numbers at the start of each row equal the first one of the first row."""
    differs = rows != rows[0, 0]
    runs: Positions = np.where(differs.any(1), differs.argmax(1), rows.shape[-1])
    return runs


def _repeated_numbers(bits: Bits) -> float:
    """Return the share of integers that equal an earlier one; of many at least so many."""
    if bits.size <= MAX_COUNTED:
        return 1.0 - len(distinct(bits.astype(np.int64))) / bits.size
    most = int(bits.max()) - int(bits.min()) + 1  # of negative ones the bits are large: then nothing is known
    return max(0.0, 1.0 - most / bits.size)


def _repeated_rows(bits: Bits) -> float:
    """Return the share of the first rows, along the first dimension, that equal an earlier one of them."""
    rows = bits[:MAX_ROWS].reshape(min(len(bits), MAX_ROWS), -1)
    width, most = rows.shape[1], MAX_COMPARED // len(rows)
    for num in (_LAST, _RUN):
        if _num_different(rows[:, spread(width, num)]) == len(rows):
            return 0.0
    return 1.0 - _num_different(rows if width <= most else rows[:, spread(width, most)]) / len(rows)


def _num_different(rows: Bits) -> int:
    whole = np.ascontiguousarray(rows).tobytes()
    size = len(whole) // len(rows)
    return len({whole[i : i + size] for i in range(0, len(whole), size)})
