"""Device time as a page lists it: by every kernel, and by the operator that launched it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.locate import locate_one
from diagnose.model.arrays import Ints
from diagnose.model.charts import DeviceShare, KernelTime
from diagnose.model.intervals import grouped
from diagnose.tables import Tables
from diagnose.tables.kernel_classes import kernel_times

__all__ = ["by_operator", "every_kernel"]

MAX_KERNELS = 400  # names on a page; what is left out is its last row
MAX_LOCATED = 60  # kernels whose launch is looked up, the most expensive
MAX_SHARES = 60  # operators


def every_kernel(t: Tables) -> tuple[KernelTime, ...]:
    """Return the kernels by name, the most expensive with the place of their launch."""
    events = t.trace.events
    return tuple(
        replace(row, where=replace(locate_one(t, int(events.thread[at]), int(events.start[at])), stack=()))
        if at >= 0 and i < MAX_LOCATED
        else row
        for i, (row, at) in enumerate(kernel_times(t, MAX_KERNELS))
    )


def by_operator(t: Tables) -> tuple[DeviceShare, ...]:
    """Return the device time that each operator launched; what no operator launched is one entry."""
    if t.device_id < 0 or not len(t.tasks.row):
        return ()
    ops = t.operators
    names = np.where(ops >= 0, t.trace.events.name[np.maximum(ops, 0)], -1).astype(np.int64)
    return _shares(t, names, {-1: "(no operator recorded)"})


def _shares(t: Tables, names: Ints, others: dict[int, str]) -> tuple[DeviceShare, ...]:
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    ids, _, inverse = grouped(names)
    time, calls = np.bincount(inverse, length), np.bincount(inverse)
    whole = float(length.sum()) or 1.0
    found = [
        DeviceShare(
            others.get(int(ids[i])) or t.trace.names[int(ids[i])],
            int(calls[i]) / t.steps.num,
            float(time[i]) / t.steps.num,
            float(time[i]) / whole,
        )
        for i in np.argsort(-time, kind="stable")[:MAX_SHARES].tolist()
    ]
    return tuple(found)
