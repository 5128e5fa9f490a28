"""The device's kernels, each with the place of its launch."""

from __future__ import annotations

from dataclasses import replace

from diagnose.analyzers.common.locate import locate_one
from diagnose.model.charts import KernelTime
from diagnose.tables import Tables
from diagnose.tables.kernel_list import kernel_times

__all__ = ["kernels"]


def kernels(t: Tables) -> tuple[KernelTime, ...]:
    """Return the device's kernels, each with the place of its launch."""
    events = t.trace.events
    return tuple(
        replace(row, where=replace(locate_one(t, int(events.thread[at]), int(events.start[at])), stack=()))
        if at >= 0
        else row
        for row, at in kernel_times(t)
    )
