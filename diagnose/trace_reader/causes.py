"""Which runtime call queued a device task: the one with the same correlation id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from diagnose.model.events import Ints, Kind
from diagnose.trace_reader.kinds import is_launch

__all__ = ["DEVICE_KINDS", "find_causes"]

DEVICE_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC)

_Rows = npt.NDArray[np.intp]


def find_causes(
    kind: npt.NDArray[np.uint8], correlation: Ints, name: npt.NDArray[np.int32], names: Sequence[str]
) -> npt.NDArray[np.int32]:
    """Return for each row the row of the runtime call that queued it, -1 where there is none.

    An id of 0 or below says that nothing was recorded. Where several calls share an id the one that launches
    counts, and among those the first.
    """
    causes = np.full(len(kind), -1, np.int32)
    known = correlation > 0
    calls = np.flatnonzero((kind == Kind.RUNTIME) & known)
    tasks = np.flatnonzero(np.isin(kind, DEVICE_KINDS) & known)
    if not len(calls) or not len(tasks):
        return causes
    calls = _one_call_an_id(calls, correlation, name, names)
    ids = correlation[calls]
    at = np.minimum(np.searchsorted(ids, correlation[tasks]), len(ids) - 1)
    causes[tasks] = np.where(ids[at] == correlation[tasks], calls[at], -1)
    return causes


def _one_call_an_id(calls: _Rows, correlation: Ints, name: npt.NDArray[np.int32], names: Sequence[str]) -> _Rows:
    """Return the calls sorted by id, the one to prefer for each."""
    calls = calls[np.argsort(correlation[calls], kind="stable")]
    ids = correlation[calls]
    if (ids[1:] != ids[:-1]).all():
        return calls
    launching = np.fromiter(map(is_launch, names), np.bool_, len(names))
    calls = calls[np.lexsort((~launching[name[calls]], ids))]
    ids = correlation[calls]
    return calls[np.r_[True, ids[1:] != ids[:-1]]]
