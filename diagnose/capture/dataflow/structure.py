"""What the whole content of a tensor is: constant, one-hot, triangular, diagonal or padded, and which rows are zero.

In each of these many numbers equal the one beside them. A sample shows that nearly no tensor is of this kind; only of
the others more is read, and of large ones some rows.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from diagnose.model.intervals import distinct
from diagnose.model.shapes import num_elements

# How the numbers of each dtype are coded, so that contents can be judged by their bits.
#
# Bits need no arithmetic, which would treat subnormal numbers as zeros where a script asks for that.

Bits = npt.NDArray[Any]  # of unsigned integers


class Code(NamedTuple):
    """One dtype: the unsigned type as wide, and of floating-point numbers the bits without their sign."""

    unsigned: Any
    magnitude: int  # which bits count for whether a number is zero
    normal: int = 0  # the smallest normal number, 0 where there are no subnormal ones
    one: int = 1
    is_index: bool = False  # whether its numbers may be one

    @property
    def size(self) -> int:
        """Return the bytes of a number."""
        return int(np.dtype(self.unsigned).itemsize)


_FLOATS = {
    torch.float16: Code(np.uint16, 0x7FFF, 0x0400, 0x3C00),
    torch.bfloat16: Code(np.uint16, 0x7FFF, 0x0080, 0x3F80),
    torch.float32: Code(np.uint32, 0x7FFFFFFF, 0x00800000, 0x3F800000),
    torch.float64: Code(np.uint64, (1 << 63) - 1, 1 << 52, 0x3FF << 52),
    torch.complex64: Code(np.uint64, 0x7FFFFFFF7FFFFFFF, 0, 0x3F800000),
    torch.float8_e5m2: Code(np.uint8, 0x7F, 0x04, 0x3C),
    torch.float8_e4m3fn: Code(np.uint8, 0x7F, 0x08, 0x38),
}
_INTEGERS = {
    torch.bool: Code(np.uint8, 0xFF),
    torch.uint8: Code(np.uint8, 0xFF, is_index=True),
    torch.int8: Code(np.uint8, 0xFF, is_index=True),
    torch.int16: Code(np.uint16, 0xFFFF, is_index=True),
    torch.int32: Code(np.uint32, 0xFFFFFFFF, is_index=True),
    torch.int64: Code(np.uint64, (1 << 64) - 1, is_index=True),
}
CODES: dict[torch.dtype, Code] = {**_FLOATS, **_INTEGERS}


# Which elements of a large tensor are looked at: always the same for a shape, and without a random generator.

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


Kind: TypeAlias = Literal["", "one-hot", "triangular", "diagonal", "constant", "outer"]

_DECODED = {4: np.float32, 8: np.float64}
MAX_PADDED = 1 << 22  # integers of a batch of which the padded ones are counted: 2 ms
MAX_COMPARED_BYTES = 1 << 17  # that are compared one by one for any other question: of more some, spread evenly
_LINE = 64  # elements side by side where some of a large tensor are compared


class Structure(NamedTuple):
    """Shares are -1 where they are not known."""

    kind: Kind = ""
    padded: float = -1.0
    evenly_padded: float = -1.0
    zero_rows: float = -1.0
    padded_rows: float = -1.0


_PLAIN = Structure(zero_rows=0.0)


def structure(sample: Bits, bits: Bits, shape: tuple[int, ...], code: Code, *, with_kind: bool) -> Structure:
    """Return what a content of a shape is, of which ``sample`` holds some elements.

    Padding is counted in batches of what may be an index, and in batches of frames. ``with_kind`` is false where only
    rows of zeros are of interest.
    """
    num_equal = _num_repeated(sample)
    may_be_padded = code.is_index and with_kind and len(shape) == 2
    if with_kind and code.normal and _is_filter(shape) and _are_outer(bits, shape):
        return Structure("constant" if num_equal >= sample.size - 1 else "outer", zero_rows=0.0)
    # A fifth of the numbers of the smallest triangle equal the next one.
    if num_equal < sample.size / 8 and not may_be_padded:
        return _PLAIN
    if num_equal >= sample.size - 1 > 0 and _is_constant(bits):
        return Structure("constant")
    if len(shape) < 2 or shape[-1] < 2:
        return _PLAIN
    rows = bits.reshape(-1, shape[-1])
    padded = _padded(rows[:, :, None]) if may_be_padded else (-1.0, -1.0)
    if with_kind and 2 * sample.tolist().count(0) >= sample.size and _is_one_hot(rows, code.one):
        return Structure("one-hot")
    may_be_triangular = with_kind and shape[-2] == shape[-1] >= 4  # smaller ones are chance
    kind: Kind = _kind_of_matrices(rows) if may_be_triangular else ""
    # What is there in all of the first dimension alike is no padding of frames.
    frames = _padded(bits.reshape(shape))[0] if with_kind and len(shape) == 3 else -1.0
    return Structure(kind, *padded, _zero_rows(sample, rows, code), frames)


def _num_repeated(sample: Bits) -> int:
    """Return how many numbers equal the next one, or some more where a number begins or ends with zero bytes.

    As one large integer: NumPy's functions take 20 us each where a long operator has emptied the caches.
    """
    number, last = int.from_bytes(sample.tobytes(), "little"), sample.nbytes - sample.itemsize
    differs = (number ^ number >> 8 * sample.itemsize).to_bytes(sample.nbytes, "little")
    return differs.count(bytes(sample.itemsize), 0, last)


def _is_constant(bits: Bits) -> bool:
    if bits.nbytes > MAX_COMPARED_BYTES:
        num = bits.size // _LINE
        bits = bits[: num * _LINE].reshape(num, _LINE)[spread(num, _num_compared(_LINE * bits.itemsize))]
    return bool((bits == bits.item(0)).all())


def _is_filter(shape: tuple[int, ...]) -> bool:
    """Return whether a content may be the square filter of each channel."""
    return len(shape) == 4 and shape[1] == 1 and 1 < shape[2] == shape[3] <= MAX_SAMPLE


def _are_outer(bits: Bits, shape: tuple[int, ...]) -> bool:
    """Return whether each filter is the outer product of its column and its row through the largest element."""
    for each in bits.view(_DECODED.get(bits.itemsize, bits.dtype)).reshape(-1, *shape[2:]):
        row, column = np.unravel_index(np.abs(each).argmax(), each.shape)
        most = each[row, column]
        for some in (slice(-1, None), slice(None)):  # the last row first: of nearly all others it is enough
            if not np.isfinite(most) or not np.allclose(
                np.outer(each[some, column], each[row] / most) if most else most, each[some], atol=1e-5 * abs(most)
            ):
                return False
    return True


def _num_compared(row_bytes: int) -> int:
    return max(MAX_COMPARED_BYTES // row_bytes, 16)


def some_rows(num: int, row_bytes: int) -> Positions:
    """Return which of so many rows stand for all."""
    return spread(num, min(_num_compared(row_bytes), 64))


def _some(rows: Bits) -> Bits:
    found = some_rows(len(rows), rows.shape[-1] * rows.itemsize)
    return rows if len(rows) == len(found) else rows[found]


def _is_one_hot(rows: Bits, one: int) -> bool:
    if np.count_nonzero(rows[0]) != 1:
        return False
    some = _some(rows)
    return bool(((some != 0).sum(1) == 1).all() and (some.max(1) == one).all())


def _zero_rows(sample: Bits, rows: Bits, code: Code) -> float:
    """Return the share of rows, some of all, that hold zeros of either sign throughout; 0 where it is a small one."""
    size, width = sample.nbytes, RUN * sample.itemsize
    magnitudes = int.from_bytes(sample.tobytes(), "little") & _ones(code.magnitude, sample.itemsize, sample.size)
    numbers = magnitudes.to_bytes(size, "little")
    num_zero = [numbers[at : at + width] for at in range(0, size - width + 1, width)].count(bytes(width))
    # Where a ReLU takes half of the numbers, a sixteenth of the runs is zero.
    if num_zero < size // width / 8:
        return 0.0
    magnitude, width = code.unsigned(code.magnitude), rows.shape[-1]
    places, columns = some_rows(len(rows), width * rows.itemsize), spread(width, MAX_SAMPLE // 16)
    has_numbers = (rows[places] & magnitude).any(1)
    shown = (rows[np.ix_(places, columns)] & magnitude).any(1)
    if len(places) < len(rows) and (shown == has_numbers).all():  # then a few columns show what more rows hold
        has_numbers = (rows[np.ix_(spread(len(rows), MAX_SAMPLE), columns)] & magnitude).any(1)
    return 1.0 - float(np.count_nonzero(has_numbers)) / len(has_numbers)


@lru_cache(maxsize=64)
def _ones(magnitude: int, size: int, num: int) -> int:
    """Return the bits that count of so many numbers of ``size`` bytes, as one large integer."""
    return int.from_bytes(magnitude.to_bytes(size, "little") * num, "little")


def _kind_of_matrices(rows: Bits) -> Kind:
    """Return whether each matrix is triangular: one number above the diagonal or, if the first row is not, below it.

    Or diagonal: zeros on both sides. ``rows`` are those of all matrices.
    """
    side = rows.shape[-1]
    upper, lower = rows[0, -1], rows[side - 1, 0]
    if upper == lower:
        is_diagonal = upper == 0 and _is_one_number(rows, upper, above=True) and _is_one_number(rows, 0, above=False)
        return "diagonal" if is_diagonal else ""
    if upper != rows[0, 1] and lower != rows[side - 1, 1]:
        return ""
    is_above = bool((rows[0, 1:] == upper).all())
    return "triangular" if _is_one_number(rows, upper if is_above else lower, above=is_above) else ""


def _is_one_number(rows: Bits, number: Any, *, above: bool) -> bool:
    """Return whether all on one side of the diagonals is one number; a few rows are compared first."""
    for most in (8, _num_compared(rows.shape[-1] * rows.itemsize)):
        some, is_asked = _beside_diagonals(len(rows), rows.shape[-1], most, above)
        if ((rows[some] != number) & is_asked).any():
            return False
    return True


@lru_cache(maxsize=32)
def _beside_diagonals(num_rows: int, side: int, most: int, is_above: bool) -> tuple[Positions, npt.NDArray[np.bool_]]:
    """Return some rows of square matrices, and which of their elements are on one side of the diagonal."""
    some = spread(num_rows, most)
    places = np.arange(side) - (some % side)[:, None]
    return some, places > 0 if is_above else places < 0


def _padded(bits: Bits) -> tuple[float, float]:
    """Return which share of the second of three dimensions, at either end, holds one number in all of the others.

    Second: of rows that are padded alike.
    """
    if bits.size > MAX_PADDED:
        return -1.0, -1.0
    shares = [0.0, 0.0]
    for each in (bits[:, ::-1], bits) if len(bits) > 1 else ():
        if (each[:, 0] == each[0, 0, 0]).all():
            runs = _before_first((each != each[0, 0, 0]).any(2))
            shares[bool((runs == runs[0]).all())] += int(runs.min()) / bits.shape[1]
    return min(shares[0], 1.0), shares[1]


def runs_at_start(rows: Bits) -> Positions:
    """Return how many numbers at the start of each row equal the first one of the first row."""
    return _before_first(rows != rows[0, 0])


def _before_first(differs: npt.NDArray[np.bool_]) -> Positions:
    """Return how many elements of each row come before its first true one."""
    before: Positions = np.where(differs.any(1), differs.argmax(1), differs.shape[1])
    return before
