"""Growable columns: one array each, filled block by block, in which nothing recorded costs nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Column"]

_Array = npt.NDArray[Any]
_FIRST = 4096


class Column:
    """A column in which rows that were never written read as -1."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._data: _Array = np.empty(0, dtype)
        self._filled = 0

    def write(self, at: int, values: _Array) -> None:
        """Write rows from row ``at`` on; what lies between them and earlier ones was not recorded."""
        end = at + len(values)
        self._grow(end)
        self._data[self._filled : at] = -1
        self._data[at:end] = values
        self._filled = max(self._filled, end)

    def finish(self, length: int) -> _Array:
        """Return the column with ``length`` rows; the object is empty afterwards."""
        data, self._data = self._data, np.empty(0, self._data.dtype)
        if not self._filled:
            return np.broadcast_to(np.array(-1, data.dtype), length)
        if len(data) < length:
            data.resize(length, refcheck=False)
        data[self._filled : length] = -1
        data.resize(length, refcheck=False)
        return data

    def _grow(self, length: int) -> None:
        if length > len(self._data):
            # By a quarter: resizing a large block moves pages, not bytes, and untouched pages take no memory.
            self._data.resize(max(length, len(self._data) * 5 // 4, _FIRST), refcheck=False)
