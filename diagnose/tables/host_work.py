"""All of the host's work that a cause stands for, also where the device was busy meanwhile.

A finding names the idle time that its cause left behind. Its cause goes from the step as a whole: what ran under the
device goes as well, and the host then launches earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, distinct, overlaps, subtract, union
from diagnose.model.rules import Cause
from diagnose.tables import Tables
from diagnose.tables.calls import allocations, code_loads, collections, compile_frames
from diagnose.tables.collectives import host_exchanges
from diagnose.tables.host_gaps import host_gaps, python_gaps
from diagnose.tables.launch_latency import MIN_LATENCY_NS
from diagnose.tables.names import LOADER_NEXT

__all__ = ["MAX_FETCH_NS", "host_work", "is_paced_by_workers", "loads_in_process", "waits_for_workers"]

MAX_FETCH_NS = 200_000  # of a batch that workers have ready: 0.05 to 0.2 ms on the training thread
MIN_WAITING = 0.1  # of the window: less is what it takes to fetch a batch that is there


def host_work(t: Tables, cause: Cause, pieces: Intervals) -> Intervals:
    """Return the host's work behind the idle pieces of a cause; nothing where only the pieces are known."""
    found = _WORK.get(cause)
    work = found(t, pieces) if found is not None else EMPTY
    latency = t.launch_latency or 0
    # What the host does now, the device feels one launch latency later; where that is a few µs, idle and work coincide.
    return union(work, (pieces.start - latency, pieces.end - latency)) if latency > MIN_LATENCY_NS else work


def waits_for_workers(t: Tables, without: str) -> bool:
    """Return whether the device idles, also without a rule's cause, until workers have loaded the next batch."""
    if t.kinds.get(without) == "loading":
        return False
    pieces = _waits_for_batches(t)
    idle = int((t.causes.end - t.causes.start)[pieces].sum())
    return idle > MIN_WAITING * (t.steps.window[1] - t.steps.window[0]) and not loads_in_process(t)


def _waits_for_batches(t: Tables) -> Rows:
    """Return the rows of the pieces of idle time that loading takes."""
    loads = np.array([t.kinds.get(rule) == "loading" for rule in t.causes.rules], bool)
    return np.flatnonzero(loads[t.causes.rule])


def loads_in_process(t: Tables) -> bool:
    """Return whether the training process itself loads batches, as the loader's name has it."""
    rows = t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP)
    return any("SingleProcess" in t.trace.names[name] for name in distinct(t.trace.events.name[rows]).tolist())


def is_paced_by_workers(t: Tables, without: str) -> bool:
    """Return whether steps come as often as workers load batches, also without a rule's cause.

    They do where the device idles for several batches: what makes a step shorter makes the next wait longer. A wait for
    one batch may be for workers that had just been started.
    """
    if not waits_for_workers(t, without):
        return False
    fetches = np.sort(t.trace.events.start[t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP)], kind="stable")
    fetch = np.searchsorted(fetches, t.causes.start[_waits_for_batches(t)], side="right")
    return len(distinct(fetch)) > 1


def _allocating(t: Tables, _pieces: Intervals) -> Intervals:
    return t.covering(allocations(t))


def _collecting(t: Tables, _pieces: Intervals) -> Intervals:
    return collections(t)


def _compiling(t: Tables, _pieces: Intervals) -> Intervals:
    return t.covering(np.concatenate([compile_frames(t), code_loads(t)]))


def _loading(t: Tables, _pieces: Intervals) -> Intervals:
    """Return the loading beyond what fetching a batch takes that is there: as long as the shortest call, or less."""
    calls = t.in_window(t.calls(LOADER_NEXT, Kind.ANNOTATION, Kind.OP))
    start, end = t.trace.events.start[calls], t.trace.events.end[calls]
    fetch_ns = min(int((end - start).min(initial=MAX_FETCH_NS)), MAX_FETCH_NS)
    return union((start + fetch_ns, end))


def _between_operators(t: Tables, pieces: Intervals) -> Intervals:
    """Return the Python between operators: the intervals that a piece touches, and those that show to be Python.

    What other causes take of them is not Python's: collections, calls of the driver, and waits for other processes.
    """
    gaps = host_gaps(t)
    touched = overlaps(pieces, gaps.start, gaps.end)
    python = union(Intervals(gaps.start[touched], gaps.end[touched]), python_gaps(t))
    others = union(_collecting(t, pieces), _allocating(t, pieces), _compiling(t, pieces), host_exchanges(t))
    return subtract(python, others)


_WORK: Mapping[Cause, Callable[[Tables, Intervals], Intervals]] = {
    "loading": _loading,
    "allocation": _allocating,
    "collection": _collecting,
    "compilation": _compiling,
    "between-operators": _between_operators,
}
