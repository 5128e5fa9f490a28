"""Calls in which the host waits for the device."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import distinct
from diagnose.tables import Tables, shared_table
from diagnose.tables.names import BLOCKING, rows_of

__all__ = ["RETURN_NS", "blocking_calls"]

RETURN_NS = 50_000  # a blocking call returns within this of the device having drained

# A copy call that is still running this long after its copy began waits for it: a call that queues one returns first.
_MARGIN_NS = 2_000


@shared_table
def blocking_calls(t: Tables) -> Rows:
    """Return the synchronisations, and the copy calls that returned only after their copy was done."""
    events = t.trace.events
    copies = rows_of(t.trace, Kind.MEMCPY)
    copies = copies[events.cause[copies] >= 0]
    call = events.cause[copies]
    waited = events.end[call] >= events.end[copies] - _MARGIN_NS
    waited &= np.isin(events.thread[call], t.threads)
    return distinct(t.calls(BLOCKING), call[waited]).astype(np.intp)
