"""Collectives that have rules of their own: DDP's buffer broadcasts, many small ones, host barriers."""

from __future__ import annotations

import re

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.dataflow import Value
from diagnose.model.events import Kind
from diagnose.model.intervals import (
    EMPTY,
    Intervals,
    among,
    contains,
    intersect,
    longer_than,
    subtract,
    union,
)
from diagnose.model.limits import AT_ONCE_NS
from diagnose.tables import Tables
from diagnose.tables.host import host_rows, outermost
from diagnose.tables.names import EXPERT_EXCHANGE, HOST_BACKEND, HOST_COLLECTIVE, matching

MIN_COLLECTIVES_PER_STEP = 10  # collectives a step beyond which their number itself costs; buckets are 1 to 5
MAX_SMALL_COLLECTIVE_NS = 100_000


_FORWARD = re.compile(r"^DistributedDataParallel\.forward")
_HOST_COLLECTIVE = re.compile(r"^gloo:")
_CALL = re.compile(r"^c10d::|^record_param_comms|^nccl:")
_BROADCAST_CALL = re.compile(r"^(c10d::|nccl:|rccl:)_?broadcast")
_BROADCAST = r"(?i)broadcast"
# What DDP calls around a broadcast: buffers go into one tensor before it, and out of it again behind it.
_AROUND_BROADCAST = (
    r"^(c10d::|record_param_comms|nccl:|aten::(un)?flatten_dense_tensors$|torch::utils::|"
    r"aten::(view|view_as|narrow|reshape|contiguous|cat|copy_|detach|empty\w*)$)"
)


def buffer_broadcasts(t: Tables) -> Rows:
    """Return the rows of Tasks that are broadcasts launched inside DDP's forward."""
    forward = t.covering(t.calls(_FORWARD, Kind.ANNOTATION, Kind.OP))
    tasks = t.tasks
    mine = np.flatnonzero(tasks.is_collective & (tasks.launch >= 0))
    if not len(mine) or not len(forward.start):
        return np.empty(0, np.intp)
    named = np.array([bool(re.search(_BROADCAST, t.name(row))) for row in tasks.row[mine].tolist()], bool)
    launched_at = t.trace.events.start[tasks.launch[mine]]
    calls = t.covering(t.calls(_BROADCAST_CALL, Kind.ANNOTATION, Kind.OP))
    named |= contains(calls, launched_at)  # RCCL has one kernel for several collectives
    named &= contains(forward, launched_at)
    found: Rows = mine[named]
    return found


def buffer_updates(t: Tables) -> Intervals:
    """Return when the host sends buffers inside DDP's forward: from gathering them to the last copy back.

    Without a device the sending itself lies between the two.
    """
    events = t.trace.events
    launches = t.tasks.launch[buffer_broadcasts(t)] if t.device_id >= 0 else t.calls(_BROADCAST_CALL, Kind.OP)
    parts = []
    for forward in t.calls(_FORWARD, Kind.ANNOTATION, Kind.OP).tolist():
        start, end, thread = events.start[forward], events.end[forward], int(events.thread[forward])
        own = launches[(events.start[launches] >= start) & (events.start[launches] < end)]
        own = own[events.thread[own] == thread]
        if not len(own):
            continue
        rows = host_rows(t.trace, thread, Kind.OP)
        rows = rows[(events.start[rows] >= start) & (events.end[rows] <= end) & (rows != forward)]
        rows = outermost(t.trace, rows)
        if not len(rows):
            continue
        at = np.searchsorted(events.start[rows], events.start[[own[0], own[-1]]], side="right") - 1
        first, last = max(int(at[0]), 0), max(int(at[1]), 0)
        around = [re.match(_AROUND_BROADCAST, t.name(row)) is not None for row in rows.tolist()]
        while first > 0 and around[first - 1]:
            first -= 1
        while last + 1 < len(rows) and around[last + 1]:
            last += 1
        parts.append((int(events.start[rows[first]]), int(events.end[rows[last]])))
    return union((np.array([a for a, _ in parts], np.int64), np.array([b for _, b in parts], np.int64)))


def constant_buffers(t: Tables) -> list[Value]:
    """Return the buffers of the recorded data flow if all of them hold the same in all its steps, else none.

    A broadcast writes them, each time with what they held.
    """
    held: dict[str, Value] = {}
    for value in t.capture.dataflow.values if t.capture.dataflow is not None else ():
        if value.role == "buffer":
            first = held.setdefault(value.name, value)
            if not value.fingerprint or value.fingerprint != first.fingerprint:
                return []
    return sorted(held.values(), key=lambda value: -value.num_bytes)


def exposed_broadcasts(t: Tables) -> Intervals:
    """Return the time in which such a broadcast runs and nothing else does."""
    return _exposed(t, buffer_broadcasts(t))


def _exposed(t: Tables, rows: Rows) -> Intervals:
    return intersect(union((t.tasks.start[rows], t.tasks.end[rows])), t.occupancy.exposed_communication)


def small_collectives(t: Tables) -> Rows:
    """Return the rows of Tasks that are collectives of under ``MAX_SMALL_COLLECTIVE_NS``, none where they are few.

    An exchange between experts is none of them: what it sends is routed anew each time, and goes into no bucket.
    """
    tasks = t.tasks
    mine = np.flatnonzero(tasks.is_collective & (tasks.end - tasks.start < MAX_SMALL_COLLECTIVE_NS))
    mine = mine[~t.tasks_matching(EXPERT_EXCHANGE, mine)]
    found: Rows = mine[~among(mine, buffer_broadcasts(t))]
    return found if len(found) > MIN_COLLECTIVES_PER_STEP * t.steps.num else np.empty(0, np.intp)


def exposed_small(t: Tables) -> Intervals:
    """Return the time in which such a small collective runs and nothing else does."""
    return subtract(_exposed(t, t.small_collectives), exposed_broadcasts(t))


def host_calls_of(t: Tables, tasks: Rows) -> Intervals:
    """Return when the host called the collectives that are given as rows of Tasks: operators of process groups."""
    events = t.trace.events
    calls = t.calls(_CALL, Kind.OP, Kind.ANNOTATION)
    launched = t.tasks.launch[tasks]
    begun = np.sort(events.start[launched[launched >= 0]], kind="stable")
    holds = np.searchsorted(begun, events.end[calls]) > np.searchsorted(begun, events.start[calls])
    return union((events.start[calls[holds]], events.end[calls[holds]]))


def host_exchanges(t: Tables) -> Intervals:
    """Return when the host waits for other ranks: in calls that do, and while a backend of the host exchanges."""
    rows = t.calls(HOST_COLLECTIVE, Kind.OP, Kind.ANNOTATION, Kind.PYTHON)
    # On the host: shorter ones only queue work on the device.
    return union(longer_than(t.covering(rows), AT_ONCE_NS), t.host_backend if t.device_id >= 0 else EMPTY)


def host_backend(t: Tables) -> Intervals:
    """Return when threads of a host backend exchange tensors while the stepping thread runs no operator."""
    exchanged = t.covering(matching(t.trace, (Kind.ANNOTATION, Kind.OP), HOST_BACKEND))
    return longer_than(subtract(exchanged, t.in_ops), AT_ONCE_NS)
