"""The device's side: its tasks in the window, what each is, and the partition of the step."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Ints, Mask, Rows
from diagnose.model.diagnosis import Partition
from diagnose.model.events import Kind, Trace
from diagnose.model.intervals import Intervals, grouped, span, subtract, total, union
from diagnose.tables.names import COLLECTIVE, matching, rows_of

_MOVES = re.compile(r"HtoD|DtoH|PtoP|HostToDevice|DeviceToHost|PeerToPeer|CopyHostToDevice|CopyDeviceToHost")


class Tasks(NamedTuple):
    """The device tasks of one device in the window, sorted by start; columns are parallel."""

    row: Rows  # row of Trace.events
    start: Ints
    end: Ints  # clipped to the window
    stream: npt.NDArray[np.int32]
    launch: npt.NDArray[np.int32]  # row of the call that queued it, -1 where the file has none
    is_collective: Mask
    is_copy: Mask  # between host and device or between devices; a copy within one device is work

    def chosen(self, which: Mask) -> Tasks:
        """Return some of the tasks."""
        return Tasks._make(column[which] for column in self)


class Occupancy(NamedTuple):
    """What covers the window, each a set of intervals; compute hides communication, both hide copies."""

    busy: Intervals
    idle: Intervals
    compute: Intervals
    exposed_communication: Intervals
    exposed_copy: Intervals


def busiest_device(trace: Trace) -> int:
    """Return the id of the device with the most task time, -1 where no device ran anything."""
    rows = rows_of(trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    devices = trace.events.device[rows]
    if not len(rows):
        return -1
    ids, _, inverse = grouped(devices)
    busy = np.bincount(inverse, weights=(trace.events.end - trace.events.start)[rows])
    return int(ids[busy.argmax()])


def find_tasks(trace: Trace, device: int, start: int, end: int) -> Tasks:
    """Return the tasks of ``device`` that touch the window from ``start`` to ``end``."""
    events = trace.events
    rows = rows_of(trace, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    rows = rows[(events.device[rows] == device) & (events.start[rows] < end) & (events.end[rows] > start)]
    collective = np.zeros(len(events), bool)
    collective[matching(trace, (Kind.KERNEL,), COLLECTIVE)] = True
    moves = np.zeros(len(events), bool)
    moves[matching(trace, (Kind.MEMCPY,), _MOVES)] = True
    return Tasks(
        row=rows,
        start=np.maximum(events.start[rows], start),
        end=np.minimum(events.end[rows], end),
        stream=events.stream[rows],
        launch=events.cause[rows],
        is_collective=collective[rows],
        is_copy=moves[rows],
    )


def occupancy(tasks: Tasks, start: int, end: int) -> Occupancy:
    """Split the window into compute, exposed communication, exposed copies and idle."""
    work = ~(tasks.is_collective | tasks.is_copy)
    compute = union((tasks.start[work], tasks.end[work]))
    communication = union((tasks.start[tasks.is_collective], tasks.end[tasks.is_collective]))
    copies = union((tasks.start[tasks.is_copy], tasks.end[tasks.is_copy]))
    exposed_communication = subtract(communication, compute)
    busy = union((tasks.start, tasks.end))
    return Occupancy(
        busy=busy,
        idle=subtract(span(start, end), busy),
        compute=compute,
        exposed_communication=exposed_communication,
        exposed_copy=subtract(subtract(copies, compute), communication),
    )


def partition(parts: Occupancy, length: int) -> Partition:
    """Return the shares of the window; they sum to 1 because the parts tile it."""
    return Partition(
        compute=total(parts.compute) / length,
        exposed_communication=total(parts.exposed_communication) / length,
        exposed_copy=total(parts.exposed_copy) / length,
        idle=total(parts.idle) / length,
    )
