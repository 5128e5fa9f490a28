"""When a step is between the forward and the backward of an operator: what it computes is wanted in the same step."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, among, distinct, grouped, intersect, total, union
from diagnose.tables import Tables
from diagnose.tables.names import BACKWARD, OPTIMIZER_STEP, matching

# How many backward passes lead to a call of an optimizer.

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


class Links(NamedTuple):
    """Nodes of the backward pass, and of each the operator whose gradient it takes."""

    ops: Rows
    nodes: Rows


def links(t: Tables) -> Links:
    """Return which operator each node of the backward pass belongs to: they share their sequence numbers."""
    events, ops = t.trace.events, t.host_rows(Kind.OP)
    nodes = t.calls(BACKWARD, Kind.OP, Kind.ANNOTATION)
    nodes = nodes[events.sequence[nodes] >= 0]
    ops = ops[among(events.sequence[ops], events.sequence[nodes])]
    if not len(ops):
        return Links(ops, ops)
    # An operator without a gradient bears the number of the next one that has one, which is the last to begin with it
    # before the backward; what a node of that calls has the node's number as well.
    ops = ops[np.lexsort((events.start[ops], events.sequence[ops]))]
    width = int(events.end.max()) + 1
    numbers = distinct(events.sequence[nodes])
    key = np.searchsorted(numbers, events.sequence[ops]) * width + events.start[ops]
    wanted = np.searchsorted(numbers, events.sequence[nodes])
    at = np.searchsorted(key, wanted * width + events.start[nodes]) - 1
    mine = (at >= 0) & (events.sequence[ops[at]] == events.sequence[nodes])
    return Links(ops[at[mine]], nodes[mine])


def passes(t: Tables) -> Intervals:
    """Return the time from each operator whose gradient is taken to the end of its backward.

    It is that of model, loss and backward.
    """
    events, linked = t.trace.events, t.links
    return union((events.start[linked.ops], events.end[linked.nodes]))


def share_in_passes(t: Tables, pieces: Intervals) -> float:
    """Return the share of the pieces that lies between an operator and its backward."""
    return total(intersect(pieces, passes(t))) / max(total(pieces), 1)
