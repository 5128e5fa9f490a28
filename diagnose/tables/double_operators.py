"""Operators on the CPU whose inputs have float64 as their only floating-point type."""

from __future__ import annotations

import json

import numpy as np

from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, grouped, union
from diagnose.tables import Tables, shared_table
from diagnose.tables.host import host_rows
from diagnose.tables.matching_operators import carried_over

__all__ = ["SAVED", "double_operators"]

SAVED = 0.5  # of their time, with half of the bytes: a vector unit takes twice as many numbers
_DOUBLE, _OTHERS = '"double"', ('"float"', '"c10::Half"', '"c10::BFloat16"', '"c10::complex')


@shared_table
def double_operators(t: Tables) -> Intervals:
    """Return what float32 would save of the training thread's operators without a device, at their ends."""
    if t.device_id >= 0:
        return EMPTY
    events, names = t.named.trace.events, t.named.trace.names
    is_double = np.array([_DOUBLE in name and not any(each in name for each in _OTHERS) for name in names], bool)
    rows = host_rows(t.named.trace, t.named.main, Kind.OP)
    rows = rows[(events.types[rows] >= 0) & (events.shapes[rows] >= 0)]
    rows = rows[is_double[events.types[rows]]]
    at = grouped(events.types[rows].astype(np.int64) * (len(names) + 1) + events.shapes[rows])
    alike = rows[at.first].tolist()
    has_size = [_has_size(names[events.types[row]], names[events.shapes[row]]) for row in alike]
    rows = rows[np.array(has_size, bool)[at.of]]
    return carried_over(t, union((events.start[rows], events.end[rows])), SAVED)


def _has_size(types: str, shapes: str) -> bool:
    """Return whether a float64 input has dimensions: a number of Python's is one without, whatever is computed."""
    try:
        each = zip(json.loads(types), json.loads(shapes), strict=False)
        return any(kind == "double" and shape for kind, shape in each)
    except (TypeError, ValueError):  # no texts of the profiler's
        return False
