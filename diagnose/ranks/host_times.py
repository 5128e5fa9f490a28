"""What a rank's host takes for each step, whether or not its device shows it.

A device that waits for other ranks lets its host get ahead: what the host does meanwhile, its device does not wait for.
Did the device not wait for others, the step would be no shorter than its host takes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from diagnose.model.arrays import Ints
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, covered, subtract, union
from diagnose.ranks.profile import PHASES
from diagnose.tables import Tables
from diagnose.tables.names import matching

__all__ = ["host_times"]

MIN_BLOCKED_NS = 100_000  # of a call of the runtime: it waits for the device, or for room in its queue
MAX_SILENT_NS = 100_000  # between two operators: Python goes on; longer silence may be waiting
_EXCHANGE = re.compile(r"^c10d::|^record_param_comms|^gloo:")  # such a call that takes long waits for other ranks


def host_times(t: Tables, bounds: Ints, parts: Mapping[str, Intervals], copies: str) -> Ints:
    """Return for each step what its host takes; 0 without a device.

    Where the host begins and ends a step before the device has done what was launched, that is the step of the host.
    Elsewhere it is the time from one step's last collective to the next one's in which the host is seen to work, or the
    device waits for it. ``parts`` is the rank's own time by cause, ``copies`` the cause that waits for no host.
    """
    if t.device_id < 0:
        return np.zeros(t.steps.num, np.int64)
    events, start, end = t.trace.events, np.asarray(t.steps.start, np.int64), np.asarray(t.steps.end, np.int64)
    calls = t.host_rows(Kind.RUNTIME)
    blocked = t.covering(calls[events.end[calls] - events.start[calls] >= MIN_BLOCKED_NS])
    before = np.concatenate([[t.steps.window[0]], bounds[:-1]])
    is_ahead = (end < bounds) & (start < np.concatenate([[start[0]], bounds[:-1]]))
    waited_for = union(*(part for cause, part in parts.items() if cause not in (*PHASES, copies)))
    busy = union(_seen(t, blocked), waited_for)
    return np.where(is_ahead, end - start - covered(blocked, start, end), covered(busy, before, bounds))


def _seen(t: Tables, blocked: Intervals) -> Intervals:
    """Return when the host is in operators, or between two that follow each other at once, and does not wait."""
    inside = t.in_ops
    if len(inside.start) > 1:
        begin, end = inside.end[:-1], inside.start[1:]
        short = end - begin <= MAX_SILENT_NS
        inside = union(inside, Intervals(begin[short], end[short]))
    events, calls = t.trace.events, matching(t.trace, (Kind.OP, Kind.ANNOTATION), _EXCHANGE)
    exchanges = t.covering(calls[events.end[calls] - events.start[calls] >= MIN_BLOCKED_NS])
    return subtract(subtract(inside, blocked), exchanges)
