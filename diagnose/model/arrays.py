"""The array types that signatures name; a table's own columns give their exact types where they are defined."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

Ints: TypeAlias = npt.NDArray[np.int64]
"""Times in ns, sizes in bytes, ids."""
Floats: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int32 | np.int64]
"""Numbers that are compared and not calculated with; four bytes each where all of a trace fit."""
Rows: TypeAlias = npt.NDArray[np.intp]
"""Indices into a table, such as rows of ``Trace.events``."""
Mask: TypeAlias = npt.NDArray[np.bool_]
"""One boolean for each row of a table."""


def read_only(value: T) -> T:
    """Return a table whose columns cannot be written to any more: an array, a tuple of tables or a dict of them.

    Anything else is returned as it is. Writing raises a ValueError, and costs nothing to prevent: a flag of each array.
    """
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, tuple):
        for part in value:
            read_only(part)
    elif isinstance(value, dict):
        for part in value.values():
            read_only(part)
    return value
