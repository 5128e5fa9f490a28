"""Queue depth: launches made on the host and not yet finished on the device, over time."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Ints
from diagnose.model.diagnosis import Queue
from diagnose.model.events import Trace
from diagnose.model.intervals import among, covered, distinct, total
from diagnose.tables.device import Occupancy, Tasks
from diagnose.tables.gaps import late_tasks, latency_bound, launches_unlinked
from diagnose.tables.steps import Steps


def depth_over_time(
    trace: Trace, tasks: Tasks, window: tuple[int, int], launch_latency: int | None
) -> tuple[Ints, Ints]:
    """Return (time, depth): from each time on, that many launches are unfinished; starts at the window.

    A launch of many tasks, as of a graph, counts as one until its last task has ended. A launch that has not reached
    the device yet is no work that waits there: it counts from one launch latency on.
    """
    begun = np.where(tasks.launch >= 0, trace.events.start[tasks.launch] + (launch_latency or 0), tasks.start)
    begun = np.clip(np.minimum(begun, tasks.start), window[0], window[1])
    ended = tasks.end
    if len(begun):
        launch = np.where(tasks.launch >= 0, tasks.launch, -1 - np.arange(len(tasks.launch)))  # unlinked: its own
        order = np.argsort(launch, kind="stable")
        first = np.flatnonzero(np.diff(launch[order], prepend=launch[order[0]] - 1))
        begun, ended = np.minimum.reduceat(begun[order], first), np.maximum.reduceat(tasks.end[order], first)
    time = np.concatenate([begun, ended, [window[0]]])
    change = np.concatenate([np.ones(len(begun), np.int64), -np.ones(len(ended), np.int64), [0]])
    order = np.argsort(time, kind="stable")
    time, depth = time[order], np.cumsum(change[order])
    last = np.append(time[1:] > time[:-1], True)
    return time[last], depth[last]


def queue_numbers(trace: Trace, tasks: Tasks, parts: Occupancy, steps: Steps, launch_latency: int | None) -> Queue:
    """Return the queue's figures over the window; percentiles of the depth are weighted by time."""
    start, end = steps.window
    time, depth = depth_over_time(trace, tasks, steps.window, launch_latency)
    weight = np.diff(np.append(time, end))
    p50, p90 = _weighted_percentiles(depth, weight, (0.5, 0.9))
    known = tasks.launch >= 0
    delay = np.maximum(tasks.start[known] - trace.events.end[tasks.launch[known]], 0)
    is_unlinked = launches_unlinked(tasks)
    busy = covered(parts.busy, time, np.append(time[1:], end))
    if is_unlinked:  # then of the tasks that began after a pause
        pauses = parts.idle.end[parts.idle.end - parts.idle.start >= latency_bound(launch_latency)]
        late = among(tasks.start, pauses)
    else:
        late = late_tasks(trace, tasks)[known]
    return Queue(
        busy_share=total(parts.busy) / (end - start),
        idle_share=total(parts.idle) / (end - start),
        depth_p50=p50,
        depth_p90=p90,
        empty_share=float(weight[depth <= 0].sum() / max(1, weight.sum())),
        launches_per_step=len(distinct(tasks.launch[known])) / steps.num,
        late_share=float(late.mean()) if len(late) else 0.0,
        delay_p50_ns=int(np.median(delay)) if len(delay) else 0,
        busy_depth_p50=None if is_unlinked or not busy.any() else _weighted_percentiles(depth, busy, (0.5,))[0],
        launch_latency_ns=launch_latency,
    )


def _weighted_percentiles(value: Ints, weight: Ints, points: tuple[float, ...]) -> list[float]:
    order = np.argsort(value, kind="stable")
    reached = np.cumsum(weight[order])
    if not len(reached) or reached[-1] <= 0:
        return [0.0 for _ in points]
    at = np.searchsorted(reached, np.array(points) * reached[-1])
    return [float(value[order[i]]) for i in at]
