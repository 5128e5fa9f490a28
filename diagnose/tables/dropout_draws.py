"""Masks of dropout that the training thread draws number by number, where there is no device."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, contains
from diagnose.tables import Tables, shared_table
from diagnose.tables.host import host_rows, outermost
from diagnose.text.patterns import lazy_pattern

__all__ = ["dropout_draws", "spared"]

MIN_NS = 50_000  # of a draw: a mask of fewer numbers takes as long by any way
SPARED = 0.8  # of a draw, by drawing four numbers at a time: 65,536 to 4 million on two cores took 14 to 20 %
_DRAW = "aten::bernoulli_"
_CALLED = lazy_pattern(r"^aten::(dropout|scaled_dot_product_attention)$")  # by functions that Python can replace


@shared_table
def dropout_draws(t: Tables) -> Rows:
    """Return the draws of dropouts and attentions that Python calls; those of an `nn.LSTM` no Python replaces."""
    names = t.trace.names
    if t.device_id >= 0 or _DRAW not in names:
        return np.empty(0, np.intp)
    events, rows = t.trace.events, t.in_window(host_rows(t.trace, t.main, Kind.OP))
    outer = outermost(t.trace, rows)
    is_called = np.array([_CALLED.match(name) is not None for name in names], bool)
    dropouts = t.covering(outer[is_called[events.name[outer]]])
    draws = rows[events.name[rows] == names.index(_DRAW)]
    found: Rows = draws[contains(dropouts, events.start[draws]) & (events.end[draws] - events.start[draws] >= MIN_NS)]
    return found


def spared(t: Tables) -> Intervals:
    """Return what another way of drawing takes less, at the ends of the draws."""
    events, rows = t.trace.events, dropout_draws(t)
    if not len(rows):
        return EMPTY
    end = events.end[rows]
    return Intervals(end - ((end - events.start[rows]) * SPARED).astype(np.int64), end)
