"""Which backward pass each gradient comes from, and which optimizer's call follows it."""

from __future__ import annotations

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import distinct, grouped
from diagnose.tables import Tables, host_table
from diagnose.tables.names import OPTIMIZER_STEP, matching
from diagnose.tables.python_calls import called_by_python
from diagnose.text.patterns import lazy_pattern

__all__ = ["Gradients", "gradients", "passes_per_update"]

_ACCUMULATE = lazy_pattern(r"^autograd::engine::evaluate_function: torch::autograd::AccumulateGrad$")


class Gradients(NamedTuple):
    """The engine's functions that add to a parameter's gradient, in time order, where an optimizer's call follows."""

    rows: Rows
    updates: Rows  # the optimizer's calls
    update: Rows  # the place in ``updates`` of the call that follows each
    part: Rows  # the same number for those of one backward pass: between two passes Python calls forward operators


@host_table
def gradients(t: Tables) -> Gradients | None:
    """Return the gradients of the window's backward passes; None where a step has no optimizer's call."""
    events = t.trace.events
    rows = t.in_window(matching(t.trace, (Kind.OP, Kind.ANNOTATION), _ACCUMULATE))
    updates = t.in_window(t.calls(OPTIMIZER_STEP, Kind.ANNOTATION, Kind.OP))
    if len(updates) < t.steps.num or not len(rows):
        return None
    updates = updates[np.argsort(events.start[updates], kind="stable")]
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    update = np.searchsorted(events.start[updates], events.start[rows])
    rows, update = rows[update < len(updates)], update[update < len(updates)]
    calls = called_by_python(t)
    # An operator has a number of autograd's where a gradient may be taken of it.
    forward = events.start[calls[events.sequence[calls] >= 0]]
    return Gradients(rows, updates, update, np.searchsorted(forward, events.start[rows]))


@host_table
def passes_per_update(t: Tables) -> int | None:
    """Return how many backward passes add up before each call of an optimizer, as of micro-batches.

    None where the calls differ in that, or the passes of one lead to different numbers of gradients.
    """
    found = gradients(t)
    if found is None or not len(found.rows):
        return None
    each = set()
    for update in distinct(found.update).tolist():
        sizes = np.bincount(grouped(found.part[found.update == update]).of)
        each.add(tuple(sizes.tolist()))
    sizes_of_all = each.pop()
    return len(sizes_of_all) if not each and len(set(sizes_of_all)) == 1 else None
