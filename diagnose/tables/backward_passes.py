"""How many backward passes lead to a call of an optimizer."""

from __future__ import annotations

import re

import numpy as np

from diagnose.model.events import Kind
from diagnose.model.intervals import distinct, grouped
from diagnose.tables import Tables
from diagnose.tables.names import OPTIMIZER_STEP, matching

__all__ = ["passes_per_update"]

_ACCUMULATE = re.compile(r"^autograd::engine::evaluate_function: torch::autograd::AccumulateGrad$")


def passes_per_update(t: Tables) -> int | None:
    """Return how many backward passes add up before each call of an optimizer, as of micro-batches.

    None where a step has no such call, the calls differ in that, or the passes of one lead to different numbers of
    gradients.
    """
    events = t.trace.events
    rows = t.in_window(matching(t.trace, (Kind.OP, Kind.ANNOTATION), _ACCUMULATE))
    updates = t.in_window(t.calls(OPTIMIZER_STEP, Kind.ANNOTATION, Kind.OP))
    starts = np.sort(events.start[rows], kind="stable")
    update = np.searchsorted(np.sort(events.start[updates], kind="stable"), starts)
    starts, update = starts[update < len(updates)], update[update < len(updates)]
    if len(updates) < t.steps.num or not len(starts):
        return None
    calls = t.called_by_python
    # An operator has a number of autograd's where a gradient may be taken of it.
    part = np.searchsorted(events.start[calls[events.sequence[calls] >= 0]], starts)
    each = set()
    for one in distinct(update).tolist():
        sizes = np.bincount(grouped(part[update == one]).of)
        each.add(tuple(sizes.tolist()))
    sizes_of_all = each.pop()
    return len(sizes_of_all) if not each and len(set(sizes_of_all)) == 1 else None
