"""The rank's own time beside a collective: the device has nothing to compute because nothing was launched yet.

Such time looks like waiting for the collective, but the step takes it without the collective as well. Its cause is the
one that the rules of idle time find where a device idles meanwhile.
"""

from __future__ import annotations

import numpy as np

from diagnose.model.intervals import EMPTY, Intervals, contains, intersect, subtract, total, union
from diagnose.tables import Tables, device
from diagnose.tables.gaps import launches_unlinked
from diagnose.tables.stages import of_tasks

__all__ = ["unlaunched"]

MIN_SHARE = 0.002  # of the window: less is not worth it to ask all rules once more
WAKES_NS = 50_000  # a silent host that goes on within it behind a collective's end waited for that


def unlaunched(t: Tables, waits: frozenset[str]) -> dict[str, Intervals]:
    """Return by cause when nothing but collectives ran although the host did not wait for them.

    ``waits`` are the rules whose time is waiting for other ranks.
    """
    exposed = t.occupancy.exposed_communication if t.device_id >= 0 else EMPTY
    if not len(exposed.start) or launches_unlinked(t.tasks):
        return {}
    late = subtract(intersect(exposed, _before_launches(t)), t.covering(t.blocking_calls))
    if total(late) < MIN_SHARE * (t.steps.window[1] - t.steps.window[0]):
        return {}
    without = of_tasks(t, _computing(t.tasks))
    late = intersect(late, without.gaps.unlaunched())
    causes = without.causes
    rows = {rule: causes.of(rule) for rule in causes.totals() if rule not in waits}
    found = {rule: intersect(late, union((causes.start[mine], causes.end[mine]))) for rule, mine in rows.items()}
    return {rule: part for rule, part in found.items() if len(part.start)}


def _computing(tasks: device.Tasks) -> device.Tasks:
    mine = ~tasks.is_collective
    return device.Tasks(
        row=tasks.row[mine],
        start=tasks.start[mine],
        end=tasks.end[mine],
        stream=tasks.stream[mine],
        launch=tasks.launch[mine],
        is_collective=tasks.is_collective[mine],
        is_copy=tasks.is_copy[mine],
    )


def _before_launches(t: Tables) -> Intervals:
    """Return from each end of computing to the launch of the next task, but where the host woke with a collective."""
    tasks, events = _computing(t.tasks), t.trace.events
    if not len(tasks.row):
        return EMPTY
    known = tasks.launch >= 0
    launched = np.where(known, events.start[np.maximum(tasks.launch, 0)], tasks.start)
    reached = np.concatenate([[t.steps.window[0]], np.maximum.accumulate(tasks.end)[:-1]])
    late = known & (launched > reached)
    begin, end = reached[late], launched[late]
    ended = np.sort(t.tasks.end[t.tasks.is_collective])
    at = np.searchsorted(ended, end, side="right") - 1
    last = ended[np.maximum(at, 0)]
    woken = (at >= 0) & (last > begin) & (end - last <= WAKES_NS) & ~contains(t.in_ops, last)
    return union((begin[~woken], end[~woken]))
