"""The checks of autograd's anomaly detection: each gradient of a backward pass is looked at for NaN."""

from __future__ import annotations

import re

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import among, distinct
from diagnose.tables import Tables, shared_table
from diagnose.tables.names import BACKWARD

__all__ = ["anomaly_checks"]

_ISNAN = re.compile(r"^aten::isnan$")
_PARTS = re.compile(r"^aten::(isnan|_is_any_true|any|item|is_nonzero)$")
MIN_CHECKS = 0.5  # of the functions of a backward pass: a script that looks at single gradients makes fewer
AT_ONCE_NS = 200_000  # from one part of a check to the next


@shared_table
def anomaly_checks(t: Tables) -> Rows:
    """Return the operators of the checks, empty where anomaly detection is off."""
    trace = t.trace
    functions = t.in_window(t.calls(BACKWARD, Kind.OP))
    seen = t.in_window(t.calls(_ISNAN, Kind.OP))
    threads = distinct(trace.events.thread[functions])
    seen = seen[among(trace.events.thread[seen], threads)]
    if not len(functions) or len(seen) < MIN_CHECKS * len(functions):
        return seen[:0]
    events, parts = trace.events, t.in_window(t.calls(_PARTS, Kind.OP))
    parts = parts[among(events.thread[parts], threads)]
    last = np.searchsorted(events.start[seen], events.start[parts], side="right") - 1
    near = (last >= 0) & (events.start[parts] - events.start[seen][np.maximum(last, 0)] <= AT_ONCE_NS)
    mine: Rows = parts[near]
    return mine
