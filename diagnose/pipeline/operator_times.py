"""What the operators of a data flow take in the timing window, on the host and on the device."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Floats
from diagnose.tables import Tables
from diagnose.tables.flow import Flow

__all__ = ["operator_times"]


def operator_times(t: Tables, flow: Flow) -> tuple[Floats, Floats]:
    """Return the time of each operator on the host, and that of the tasks that it launches."""
    events, num = t.trace.events, len(flow.rows)
    rows = np.concatenate(flow.rows)
    operator = np.repeat(np.arange(num), [len(each) for each in flow.rows])
    host = np.bincount(operator, (events.end - events.start)[rows].astype(np.float64), num)
    order = np.argsort(events.start[rows], kind="stable")
    rows, operator = rows[order], operator[order]
    launched = np.flatnonzero(t.tasks.launch >= 0)
    launch = events.start[t.tasks.launch[launched]]
    at = np.searchsorted(events.start[rows], launch, side="right") - 1
    inside = (at >= 0) & (launch <= events.end[rows[at]])
    length = (t.tasks.end - t.tasks.start)[launched[inside]].astype(np.float64)
    device = np.bincount(operator[at[inside]], length, num)
    return host.astype(np.float64), device.astype(np.float64)
