"""Collectives of a host backend that are parts of a barrier or an object collective, not of the gradients' exchange.

The light window shows only that, say, an all-gather ran. The attribution window has the Python frames: a kind of
collective that there runs mostly inside `barrier` or `all_gather_object` is taken to be such a part here too.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from diagnose.model.events import Kind, Trace
from diagnose.model.intervals import covered, distinct, union
from diagnose.tables import Tables
from diagnose.tables.names import HOST_COLLECTIVE, matching

__all__ = ["collectives_of_calls"]

ANY_BACKEND = re.compile(r"^gloo:")
MIN_TIME_SHARE = 0.5


def collectives_of_calls(t: Tables) -> npt.NDArray[np.intp]:
    """Return the rows of such collectives, on whatever thread they ran."""
    named = t.capture.attribution or t.trace
    kinds = t.cached("collectives_of_calls", lambda: _kinds(named))
    rows = t.in_window(matching(t.trace, (Kind.ANNOTATION, Kind.OP), ANY_BACKEND))
    return np.array([row for row in rows.tolist() if t.name(row) in kinds], np.intp)


def _kinds(trace: Trace) -> frozenset[str]:
    events = trace.events
    calls = matching(trace, (Kind.PYTHON, Kind.OP), HOST_COLLECTIVE)
    rows = matching(trace, (Kind.ANNOTATION, Kind.OP), ANY_BACKEND)
    inside = covered(union((events.start[calls], events.end[calls])), events.start[rows], events.end[rows])
    length = events.end[rows] - events.start[rows]
    names = events.name[rows]
    return frozenset(
        trace.names[name]
        for name in distinct(names).tolist()
        if inside[names == name].sum() > MIN_TIME_SHARE * length[names == name].sum()
    )
