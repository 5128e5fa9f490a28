"""Takes the cause of a finding away, whole or in part, as a change to the graph."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Floats
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import Intervals, among, covered, distinct, union
from diagnose.model.rules import HOST_WORK, Cause
from diagnose.replay.graph import Graph, Transform
from diagnose.replay.transforms import drop_waits, scale_host, shorten_calls, shorten_pauses, shorten_tasks
from diagnose.tables import Tables
from diagnose.tables.host_work import host_work
from diagnose.tables.syncs import RETURN_NS, blocking_calls, freeing_calls, waits_for_host_copies

__all__ = ["remove_cause", "syncs_before"]


def remove_cause(t: Tables, finding: Finding, cause: Cause, fraction: float) -> Transform | None:
    """Return the change that takes ``fraction`` (0 to 1) of a finding's cause away, None where no graph shows it.

    Host work, hidden under the device or not, and pauses shrink by the fraction; copies and collectives by that share
    of their exposed time; kernels by that share of what the finding counts as lost in them. A wait for the device is
    dropped whole: it cannot be halved.
    """
    key = ("remove cause", finding.rule, finding.lost_ns, cause, fraction)
    return t.cached(key, lambda: _remove_cause(t, finding, cause, fraction))


def _remove_cause(t: Tables, finding: Finding, cause: Cause, fraction: float) -> Transform | None:
    rows = t.causes.of(finding.rule)
    pieces = Intervals(t.causes.start[rows], t.causes.end[rows])
    if cause == "device-wait":
        return partial(drop_waits, calls=syncs_before(t, pieces)) if fraction > 0 else None
    if cause in HOST_WORK:
        intervals = union(pieces, host_work(t, cause, pieces)) if t.device_id >= 0 else pieces
        shrunk: Transform = partial(scale_host, intervals=intervals, factor=1 - fraction)
        return _without_frees(t, shrunk) if cause == "allocation" and fraction > 0 else shrunk
    if t.device_id < 0:
        return partial(scale_host, intervals=pieces, factor=1 - fraction) if len(rows) else None
    if cause == "pause" and len(rows):
        return partial(shorten_pauses, pauses=pieces, fraction=fraction)
    if cause in ("collective", "copy"):
        return _of_exposed(t, cause, pieces, fraction)
    return _of_kernels(t, finding, fraction)


def _without_frees(t: Tables, shrunk: Transform) -> Transform:
    """Return the change in which calls that free memory wait for nothing either; a wait cannot be halved."""
    frees = freeing_calls(t).calls
    return lambda graph: drop_waits(shrunk(graph), frees)


def syncs_before(t: Tables, pieces: Intervals) -> npt.NDArray[np.intp]:
    """Return the blocking calls that end in a piece or shortly before one, and others of the same names.

    A call of the same kind takes the host's lead also where the device idles only later. Waits for copies from the host
    are of a kind of their own, whatever the call's name is.
    """
    calls = blocking_calls(t)
    ended = t.trace.events.end[calls]
    if not len(pieces.start):
        return calls[:0]
    at = np.searchsorted(pieces.end, ended)
    following = np.minimum(at, len(pieces.start) - 1)
    mine = (at < len(pieces.start)) & (pieces.start[following] - ended <= RETURN_NS)
    names = t.trace.events.name[calls]
    for_copies = waits_for_host_copies(t, calls)
    same = among(names, names[mine]) & (for_copies == (2 * int(for_copies[mine].sum()) >= max(int(mine.sum()), 1)))
    found: npt.NDArray[np.intp] = calls[same]
    return found


def _of_exposed(t: Tables, cause: Cause, pieces: Intervals, fraction: float) -> Transform:
    """Return the change of exposed collectives or copies; the call that stages a copy gets shorter with it."""
    communicates = cause == "collective"
    mine = t.tasks.is_collective if communicates else t.tasks.is_copy
    exposed = t.occupancy.exposed_communication if communicates else t.occupancy.exposed_copy
    alone = covered(exposed, t.tasks.start[mine], t.tasks.end[mine])
    rows, less = _sorted(t.tasks.row[mine], fraction * alone)
    if communicates:
        return partial(shorten_tasks, rows=rows, less=less)
    calls, share = _calls_of(t, np.flatnonzero(mine), alone / np.maximum(t.tasks.end - t.tasks.start, 1)[mine])
    start, end = t.trace.events.start[calls], t.trace.events.end[calls]
    intervals = union(pieces, union((start, start + (share * (end - start)).astype(np.int64))))

    def transform(graph: Graph) -> Graph:
        shorter = shorten_tasks(graph, rows, less) if len(rows) else graph
        shorter = shorten_calls(shorter, calls, fraction * share) if len(calls) else shorter
        return scale_host(shorter, intervals, 1 - fraction) if len(intervals.start) else shorter

    return transform


def _calls_of(t: Tables, tasks: npt.NDArray[np.intp], share: Floats) -> tuple[npt.NDArray[np.intp], Floats]:
    """Return the calls that queued the tasks, sorted, and the largest share of a task of each."""
    launch = t.tasks.launch[tasks]
    calls = distinct(launch[launch >= 0]).astype(np.intp)
    largest = np.zeros(len(calls))
    np.maximum.at(largest, np.searchsorted(calls, launch[launch >= 0]), share[launch >= 0])
    return calls, largest


def _of_kernels(t: Tables, finding: Finding, fraction: float) -> Transform | None:
    length = (t.tasks.end - t.tasks.start)[finding.tasks].astype(np.float64)
    if not length.sum():
        return None
    share = min(1.0, fraction * finding.lost_ns * t.steps.num / float(length.sum()))
    rows, less = _sorted(t.tasks.row[finding.tasks], share * length)
    return partial(shorten_tasks, rows=rows, less=less)


def _sorted(rows: npt.NDArray[np.intp], values: npt.NDArray[np.floating[Any]]) -> tuple[npt.NDArray[np.intp], Floats]:
    order = np.argsort(rows, kind="stable")
    return rows[order], np.asarray(values, np.float64)[order]
