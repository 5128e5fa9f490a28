"""Which blocks of memory were taken and given back, from the profiler's memory events of one device."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Ints, Rows
from diagnose.model.events import Kind
from diagnose.model.frozen import NamedTuple
from diagnose.tables import Tables
from diagnose.tables.names import rows_of

__all__ = ["NEVER", "Allocations", "find_allocations"]


NEVER = np.iinfo(np.int64).max
HOST = -1


class Allocations(NamedTuple):
    """The blocks that were taken while the profiler ran, in the order of their time, and the totals."""

    row: Rows  # the event, for its thread and time
    taken: Ints  # ns
    freed: Ints  # ns, NEVER where the recording ends before
    size: Ints  # bytes
    time: Ints  # of each taking or giving back, ns
    allocated: Ints  # bytes after it
    reserved: Ints  # bytes after it, -1 where unknown

    def held_at(self, time: int) -> Rows:
        """Return which blocks are held at a time."""
        return np.flatnonzero((self.taken <= time) & (self.freed > time))


def find_allocations(t: Tables) -> Allocations | None:
    """Return the blocks of the busiest device, of the host where there is none; None where they were not recorded."""
    events = t.trace.events
    rows = rows_of(t.trace, Kind.MEMORY)
    rows = rows[(events.device[rows] == (t.device_id if t.device_id >= 0 else HOST)) & (events.sequence[rows] >= 0)]
    if not len(rows):
        return None
    size, address = events.size[rows], events.correlation[rows]
    order = np.lexsort((np.arange(len(rows)), address))
    same = np.append(address[order][1:] == address[order][:-1], False)
    back = np.append(size[order][1:] < 0, False)
    freed = np.full(len(rows), NEVER, np.int64)
    next_one = np.append(events.start[rows][order][1:], NEVER)
    freed[order] = np.where(same & back, next_one, NEVER)
    taken = np.flatnonzero(size > 0)
    return Allocations(
        row=rows[taken],
        taken=events.start[rows[taken]],
        freed=freed[taken],
        size=size[taken],
        time=events.start[rows],
        allocated=events.sequence[rows],
        reserved=events.awaits[rows],
    )
