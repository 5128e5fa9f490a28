"""Launches whose device task is not in the file."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, among
from diagnose.model.limits import LONG_NS
from diagnose.tables import Tables
from diagnose.tables.host import captured
from diagnose.tables.names import GRAPH_LAUNCH, KERNEL_LAUNCH, LAUNCH, matching, rows_of

# Times that no run can have: tasks that overlap on one stream, which runs one after the other. Recordings whose times
# were scaled, merged or taken of a clock that was set back have them.

# Files in whole microseconds let tasks that follow each other overlap by one.
ROUNDING_NS = 1_000
# Of the time of all tasks. In 91 recordings from V100 to B200 and MI300X it is at most 0.6 %: a kernel may begin
# while the last blocks of the one before it run. 2.4 % in a file that was written by hand.
MIN_OVERLAP_SHARE = 0.05
MAX_OVERLAP_IN_STREAM = 0.25  # kernels that are launched to begin early reach less: with more the file shows no step


def overlap_share(t: Tables) -> float:
    """Return the share of the tasks' time in which an earlier task of their stream still runs, 0 to 1.

    Nodes of one graph may run side by side under the id of one stream, and do not count.
    """
    tasks = t.tasks
    length = int((tasks.end - tasks.start).sum())
    if not length:
        return 0.0
    order = np.argsort(tasks.stream, kind="stable")
    start, end = tasks.start[order], tasks.end[order]
    stream, launch = tasks.stream[order], tasks.launch[order]
    same = stream[1:] == stream[:-1]
    parts = np.split(end, np.flatnonzero(~same) + 1)  # of each stream
    reach = np.concatenate([np.maximum.accumulate(part) for part in parts])[:-1]
    overlap = np.minimum(reach, end[1:]) - start[1:]
    counts = same & (overlap > ROUNDING_NS) & ((launch[1:] != launch[:-1]) | (launch[1:] < 0))
    return float(overlap[counts].sum()) / length


MIN_LOST_SHARE = 0.001  # of the launches in the window: where more have no device task, work is missing from the file
MIN_KERNELS = 10  # for each graph: with as many beside it, the device's work is there for the most part


def device_launches(t: Tables) -> Rows:
    """Return the launches in the window that put work on the device: those into a graph do not."""
    rows = _all_launches(t)
    return rows[~captured(t.trace, rows)]


def num_captured(t: Tables) -> int:
    """Return how many launches in the window went into a graph that was being captured."""
    return len(_all_launches(t)) - len(device_launches(t))


def _all_launches(t: Tables) -> Rows:
    start, end = t.steps.window
    rows = matching(t.trace, (Kind.RUNTIME,), KERNEL_LAUNCH)
    began = t.trace.events.start[rows]
    return rows[(began >= start) & (began < end)]


def only_collectives(t: Tables) -> bool:
    """Return whether the device's tasks are collectives alone, in a file without launches: the rest was left out."""
    tasks = t.tasks
    return bool(len(tasks.row) and tasks.is_collective.all()) and not len(matching(t.trace, (Kind.RUNTIME,), LAUNCH))


def launches_without_task(t: Tables) -> Rows:
    """Return the launches in the window without a device task on any device."""
    has_task = np.zeros(len(t.trace.events) + 1, bool)  # the last place takes the -1 of tasks without a launch
    has_task[t.trace.events.cause[rows_of(t.trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)]] = True
    launches = device_launches(t)
    return launches[~has_task[launches]]


def graphs_left_no_task(t: Tables) -> bool:
    """Return whether graphs were launched that left no task at all, and little else ran on the device.

    What the device did is not in the file then, whatever its few other tasks are.
    """
    start, end = t.steps.window
    rows = matching(t.trace, (Kind.RUNTIME,), GRAPH_LAUNCH)
    rows = rows[(t.trace.events.start[rows] >= start) & (t.trace.events.start[rows] < end)]
    without = len(rows) and among(rows, t.launches_without_task).all()
    return bool(without) and int((~t.tasks.is_copy).sum()) < MIN_KERNELS * len(rows)


def lost_share(t: Tables) -> float:
    """Return the share of launches without a task, 0 to 1."""
    return len(t.launches_without_task) / max(1, len(device_launches(t)))


def graph_holes(t: Tables) -> Intervals:
    """Return long idle beside a task of a graph while the next task was queued: nodes that were not recorded."""
    gaps, tasks = t.gaps, t.tasks
    of_graph = np.zeros(len(t.trace.events) + 1, bool)
    of_graph[matching(t.trace, (Kind.RUNTIME,), GRAPH_LAUNCH)] = True
    if not of_graph.any() or not len(tasks.launch):
        return EMPTY
    beside = ((gaps.before >= 0) & of_graph[tasks.launch[gaps.before]]) | of_graph[gaps.launch]
    # Nodes of a graph follow each other within some µs.
    return gaps.device_part(beside & (gaps.end - gaps.queued_at >= LONG_NS))
