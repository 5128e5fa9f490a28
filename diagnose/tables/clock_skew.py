"""How late the device's times are beside the host's, measured on what CUDA and HIP guarantee.

A synchronisation of the device returns after all that was queued before it, a copy to pageable memory after itself,
and the synchronisation of a stream behind such a copy after the copy. Where a task ends later than the call that
waited for it returned, the clocks are apart by at least as much. They are no further apart than tasks begin after their
launches, since no task begins before its own.
"""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Ints
from diagnose.tables import Tables, host_table
from diagnose.tables.names import TO_HOST
from diagnose.text.patterns import lazy_pattern

__all__ = ["AGREE_NS", "late_by"]

AGREE_NS = 2_000  # host and device agree to about a microsecond where the profiler converts their clocks well
MIN_SKEW_NS = 5_000  # less is what files round to, and what one record may be off by
SPREAD = 0.05  # of the launches, the quickest: times are rounded, and a few may be wrong
_WHOLE_DEVICE = lazy_pattern(r"^(cuda|hip)DeviceSynchronize|^cuCtxSynchronize")
_STREAM = lazy_pattern(r"^(cuda|hip|cu)StreamSynchronize")
_TO_PAGEABLE = lazy_pattern(r"DtoH \(Device -> Pageable\)")


@host_table
def late_by(t: Tables) -> int:
    """Return by how much device times are late at most, ns; 0 where no call returned before what it waited for."""
    tasks, events = t.tasks, t.trace.events
    linked = np.flatnonzero(tasks.launch >= 0)
    if t.device_id < 0 or not len(linked):
        return 0
    ended, returned = _awaited(t)
    late = ended - returned
    if not len(late) or late.max() <= MIN_SKEW_NS:
        return 0
    delay = events.start[tasks.row[linked]] - events.start[tasks.launch[linked]]
    possible = int(np.sort(delay)[int(SPREAD * (len(delay) - 1))])
    late = late[(late > MIN_SKEW_NS) & (late <= possible)]
    return int(late.max()) if len(late) else 0


def _awaited(t: Tables) -> tuple[Ints, Ints]:
    """Return when tasks ended, and when the calls returned that waited for them."""
    tasks, events = t.tasks, t.trace.events
    linked = np.flatnonzero(tasks.launch >= 0)
    linked = linked[np.argsort(events.start[tasks.launch[linked]], kind="stable")]
    call, end = tasks.launch[linked], events.end[tasks.row[linked]]
    queued = events.start[call]
    latest = np.maximum.accumulate(end)
    whole = t.in_window(t.calls(_WHOLE_DEVICE))
    before = np.searchsorted(queued, events.start[whole]) - 1
    known = before >= 0
    pageable = t.tasks_matching(_TO_PAGEABLE, linked)
    ended = [latest[before[known]], end[pageable]]
    returned = [events.end[whole[known]], events.end[call[pageable]]]
    to_host, streams = t.tasks_matching(TO_HOST, linked), t.in_window(t.calls(_STREAM))
    for thread in t.threads:
        own = np.flatnonzero(events.thread[call] == thread)
        waits = streams[events.thread[streams] == thread]
        last = np.searchsorted(queued[own], events.start[waits]) - 1
        waits, copy = waits[last >= 0], own[last[last >= 0]]
        behind = to_host[copy]
        ended.append(end[copy[behind]])
        returned.append(events.end[waits[behind]])
    return np.concatenate(ended).astype(np.int64), np.concatenate(returned).astype(np.int64)
