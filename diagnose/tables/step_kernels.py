"""Steps of a file without any marks: the device's kernels repeat in one and the same order.

Layers repeat too, within a step. What parts steps comes in all that runs: nearly every kernel of the recording runs at
least as often as there are steps, and from one begin to the next the same kernels follow each other.
"""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Ints, Rows
from diagnose.model.events import Kind, Trace
from diagnose.model.intervals import grouped
from diagnose.tables.names import rows_of

__all__ = ["repeated_kernels"]

MIN_STEPS = 3
MIN_KERNELS = 10  # of a step: fewer are a measurement of single operators
MAX_RARE = 0.05  # of the kernels, by name, that run less often than steps: of single layers a third is rarer
MIN_ALIKE = 0.95  # of the kernels of a step, at the same place as in another one
MIN_REGULAR = 0.8  # of the steps
MIN_LINKED = 0.9  # of the tasks, to their launches


def repeated_kernels(trace: Trace) -> Rows:
    """Return the kernels that begin the steps, in time order; empty where nothing repeats so."""
    events = trace.events
    tasks = rows_of(trace, Kind.KERNEL)
    linked = tasks[events.cause[tasks] >= 0]
    none = tasks[:0]
    if len(linked) < max(MIN_STEPS * MIN_KERNELS, MIN_LINKED * len(tasks)):
        return none
    _, _, device = grouped(events.device[linked])  # of which some may be unknown
    linked = linked[device == np.bincount(device).argmax()]
    linked = linked[np.lexsort((events.start[linked], events.start[events.cause[linked]]))]
    _, _, name = grouped(events.name[linked])
    count = np.bincount(name)
    num = _num_steps(count)
    if num < MIN_STEPS:
        return none
    for anchor in np.flatnonzero(count == num).tolist():
        at = np.flatnonzero(name == anchor)
        begun = events.start[events.cause[linked[at]]]
        if (np.diff(begun) > 0).all() and _repeats(name, at):
            found: Rows = linked[at]
            return found
    return none


def _num_steps(count: Ints) -> int:
    """Return the largest number of times that nearly all kernels run at least, and some exactly; 0 for none."""
    rare = np.sort(count)[int(MAX_RARE * len(count))]
    return int(rare) if (count == rare).any() else 0


def _repeats(name: Ints, at: Rows) -> bool:
    """Return whether the kernels from one begin to the next are the same in most steps."""
    length = np.diff(at)
    usual = int(np.median(length))
    if usual < MIN_KERNELS:
        return False
    first = at[:-1][length == usual]
    if len(first) < max(MIN_REGULAR * len(length), MIN_STEPS - 1):
        return False
    alike = [(name[a : a + usual] == name[first[0] : first[0] + usual]).mean() >= MIN_ALIKE for a in first.tolist()]
    return bool(sum(alike) >= MIN_REGULAR * len(length))
