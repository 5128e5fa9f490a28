"""How the numbers of each dtype are coded, so that contents can be judged by their bits.

Bits need no arithmetic, which would treat subnormal numbers as zeros where a script asks for that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["CODES", "Bits", "Code"]

Bits = npt.NDArray[Any]  # of unsigned integers


class Code(NamedTuple):
    """One dtype: the unsigned type as wide, and of floating-point numbers the bits without their sign."""

    unsigned: Any
    magnitude: int  # which bits count for whether a number is zero
    normal: int = 0  # the smallest normal number, 0 where there are no subnormal ones
    infinite: int = 0  # from here on no number is finite, 0 where all are
    one: int = 1
    is_index: bool = False  # whether its numbers may be one

    @property
    def size(self) -> int:
        """Return the bytes of a number."""
        return int(np.dtype(self.unsigned).itemsize)


_FLOATS = {
    torch.float16: Code(np.uint16, 0x7FFF, 0x0400, 0x7C00, 0x3C00),
    torch.bfloat16: Code(np.uint16, 0x7FFF, 0x0080, 0x7F80, 0x3F80),
    torch.float32: Code(np.uint32, 0x7FFFFFFF, 0x00800000, 0x7F800000, 0x3F800000),
    torch.float64: Code(np.uint64, (1 << 63) - 1, 1 << 52, 0x7FF << 52, 0x3FF << 52),
    torch.float8_e5m2: Code(np.uint8, 0x7F, 0x04, 0x7C, 0x3C),
    torch.float8_e4m3fn: Code(np.uint8, 0x7F, 0x08, 0x7F, 0x38),
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
