"""The array types that signatures name; a table's own columns give their exact types where they are defined."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Ids", "Ints", "Mask", "Rows"]

Ints: TypeAlias = npt.NDArray[np.int64]
"""Times in ns, sizes in bytes, ids."""
Floats: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int32 | np.int64]
"""Numbers that are compared and not calculated with; four bytes each where all of a trace fit."""
Rows: TypeAlias = npt.NDArray[np.intp]
"""Indices into a table, such as rows of ``Trace.events``."""
Mask: TypeAlias = npt.NDArray[np.bool_]
"""One boolean for each row of a table."""
