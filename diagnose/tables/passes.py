"""When a step is between the forward and the backward of an operator: what it computes is wanted in the same step."""

from __future__ import annotations

import numpy as np

from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, intersect, total, union
from diagnose.tables import Tables, shared_table
from diagnose.tables.names import BACKWARD

__all__ = ["passes", "share_in_passes"]


@shared_table
def passes(t: Tables) -> Intervals:
    """Return the time from each operator whose gradient is taken to the end of its backward: of model, loss, backward.

    Operators and the nodes of the backward pass share their sequence numbers.
    """
    events, ops = t.trace.events, t.host_rows(Kind.OP)
    nodes = t.calls(BACKWARD, Kind.OP, Kind.ANNOTATION)
    nodes = nodes[events.sequence[nodes] >= 0]
    # What a node calls has its number as well: an operator of the forward begins before the node.
    ops = ops[np.isin(events.sequence[ops], events.sequence[nodes])]
    if not len(ops):
        return EMPTY
    ops = ops[np.argsort(events.sequence[ops], kind="stable")]  # the first of a number is the one of the forward
    first = ops[np.searchsorted(events.sequence[ops], events.sequence[nodes])]
    begins_before = events.start[first] < events.start[nodes]
    return union((events.start[first[begins_before]], events.end[nodes[begins_before]]))


def share_in_passes(t: Tables, pieces: Intervals) -> float:
    """Return the share of the pieces that lies between an operator and its backward."""
    return total(intersect(pieces, passes(t))) / max(total(pieces), 1)
