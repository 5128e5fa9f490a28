"""Launch latency: from the end of a launch to the start of its task, on a device that has nothing else to do.

It is 2 to 3 µs on most machines, 14 to 24 on some HIP ones, over 100 under virtualisation. Where it is longer than
what the host needs for one launch, launches are in flight together, and none meets an idle device that has nothing
coming: each task starts one latency after its launch all the same.
"""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Ints, Mask
from diagnose.model.events import Trace
from diagnose.model.intervals import Intervals, among, quantiles
from diagnose.tables.device import Tasks

__all__ = ["LATENCY_SPREAD", "MIN_LATENCY_NS", "late_tasks", "latency_bound", "launch_latency"]

MIN_LATENCY_NS = 10_000  # of the bound, and the bound where nothing can be measured
MAX_LATENCY_NS = 500_000
LATENCY_SPREAD = 1.5  # from the median to the bound; the upper quartile lies at 1.05 to 1.4 times the median
MIN_LAUNCHES = 5  # for a measurement
MIN_PAUSE_NS = 5_000  # queued tasks follow each other in less; what is longer waited for something


def late_tasks(trace: Trace, tasks: Tasks) -> Mask:
    """Return which tasks were launched onto an empty device: everything before had finished when the launch began."""
    known = tasks.launch >= 0
    order = np.argsort(tasks.start, kind="stable")
    ended = np.empty(len(order), np.int64)
    ended[order] = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(tasks.end[order])[:-1])
    late: Mask = known & (trace.events.start[tasks.launch] >= ended)
    return late


def launch_latency(trace: Trace, tasks: Tasks, idle: Intervals) -> int | None:
    """Return the median time from the end of a launch to the task's start where nothing else held the task, ns.

    Measured on launches onto an empty device. Where those are too few, on tasks that end a pause of the device, if
    they all begin equally long after their launches: what waited for anything but its launch begins at any time.
    Copies are left out, since many of their calls return only when the copy is done. None where neither is seen.
    """
    kernels = (tasks.launch >= 0) & ~(tasks.is_copy | tasks.is_collective)
    delay = tasks.start - trace.events.end[tasks.launch]
    onto_empty = delay[kernels & late_tasks(trace, tasks) & (delay >= 0)]
    if len(onto_empty) >= MIN_LAUNCHES:
        return int(np.median(onto_empty))
    return _common_delay(delay[kernels & _after_pause(tasks, idle)])


def latency_bound(latency: int | None) -> int:
    """Return up to which length a pause before a task belongs to its launch, ns."""
    return int(np.clip(LATENCY_SPREAD * (latency or 0), MIN_LATENCY_NS, MAX_LATENCY_NS))


def _after_pause(tasks: Tasks, idle: Intervals) -> Mask:
    """Return which tasks end a pause of the device."""
    pauses = idle.end[idle.end - idle.start >= MIN_PAUSE_NS]
    return among(tasks.start, pauses)


def _common_delay(delay: Ints) -> int | None:
    """Return the median of delays whose quartiles lie close together, None where they are few, wide or long."""
    if len(delay) < MIN_LAUNCHES:
        return None
    low, middle, high = quantiles(delay, 0.25, 0.5, 0.75)
    close = low * LATENCY_SPREAD >= middle and high <= LATENCY_SPREAD * middle
    return int(middle) if 0 < middle <= MAX_LATENCY_NS and close else None
