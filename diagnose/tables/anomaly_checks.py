"""Autograd's anomaly detection: each function records a stack, and its gradient is looked at for NaN."""

from __future__ import annotations

import re

import numpy as np

from diagnose.model.arrays import Ints, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, among, distinct, union
from diagnose.tables import Tables
from diagnose.tables.host import host_rows
from diagnose.tables.names import BACKWARD

__all__ = ["anomaly_checks", "recorded_stacks"]

_ISNAN = re.compile(r"^aten::isnan$")
_PARTS = re.compile(r"^aten::(isnan|_is_any_true|any|item|is_nonzero)$")
MIN_CHECKS = 0.5  # of the functions of a backward pass: a script that looks at single gradients makes fewer
_FUNCTION = r"Backward\d*$"
AT_ONCE_NS = 200_000  # from one part of a check to the next


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


def recorded_stacks(t: Tables) -> Intervals:
    """Return the begins of the training thread's operators, as long as recording their stacks takes.

    The capture measured how long that is for one; each function that an operator leaves behind has a stack.
    """
    info = t.capture.info
    if info is None or not info.stack_ns or not len(t.anomaly_checks):
        return EMPTY
    rows, number = _numbered(t)
    left_behind = np.diff(number, append=number[-1:])
    rows, left_behind = rows[left_behind > 0], left_behind[left_behind > 0]
    start, end = t.trace.events.start[rows], t.trace.events.end[rows]
    return union((start, np.minimum(end, start + (left_behind * info.stack_ns).astype(np.int64))))


def _numbered(t: Tables) -> tuple[Rows, Ints]:
    """Return rows and numbers of the training thread's operators that are called while gradients are on."""
    events = t.trace.events
    rows = host_rows(t.trace, t.main, Kind.OP)
    is_function = np.array([re.search(_FUNCTION, name) is not None for name in t.trace.names], bool)
    rows = rows[(events.sequence[rows] >= 0) & ~is_function[events.name[rows]]]
    return rows, events.sequence[rows]
