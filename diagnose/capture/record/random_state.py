"""Where the generators of random numbers stand that scripts draw from without naming one."""

from __future__ import annotations

import ctypes
import sys
import zlib
from collections.abc import Hashable

__all__ = ["random_state"]


def random_state() -> tuple[Hashable, ...]:
    """Return the state of the generators that torch, NumPy and Python draw from unless they are given another.

    Nothing where it cannot be read: the script may have put generators of its own in their place.
    """
    try:
        return _read_random_state()
    except Exception:
        return ()


def _read_random_state() -> tuple[Hashable, ...]:
    import random

    import torch

    state = torch.default_generator.get_state()
    words = (ctypes.c_char * state.numel()).from_address(state.data_ptr()) if state.numel() else b""
    found: list[Hashable] = [zlib.crc32(words), hash(random.getstate())]
    if "numpy" in sys.modules:
        name, key, *rest = sys.modules["numpy"].random.get_state()
        found += [name, zlib.crc32(key), *rest]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it so
        found += [generator.get_offset() for generator in torch.cuda.default_generators]
    return tuple(found)
