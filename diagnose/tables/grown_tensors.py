"""Concatenations that copy a large tensor to put little behind it, by the shapes of their inputs."""

from __future__ import annotations

import numpy as np

from diagnose.model.events import Kind
from diagnose.model.frozen import NamedTuple
from diagnose.model.intervals import EMPTY, Intervals, union
from diagnose.model.shapes import Shape, num_elements
from diagnose.tables import Tables, shared_table
from diagnose.tables.host import host_rows
from diagnose.tables.matching_operators import carried_over
from diagnose.tables.names import JOINS
from diagnose.tables.shapes import shapes_of

__all__ = ["GrownTensors", "grown_tensors"]

MIN_COPIED = 0.8  # of the elements are of one input


class GrownTensors(NamedTuple):
    """What the training thread copies again without a device, and the largest of it."""

    host: Intervals  # of the timing window, at the ends of its operators
    whole: Shape
    piece: Shape


@shared_table
def grown_tensors(t: Tables) -> GrownTensors:
    """Return the time of these concatenations; none where a device computes, whose kernels show it."""
    trace, largest = t.named.trace, GrownTensors(EMPTY, (), ())
    if t.device_id >= 0:
        return largest
    joins = np.array([JOINS.match(name) is not None for name in trace.names], bool)
    rows = host_rows(trace, t.named.main, Kind.OP)
    found = []
    for row in rows[joins[trace.events.name[rows]]].tolist():
        parts = sorted((shape for shape in shapes_of(trace, row) if shape), key=num_elements)
        if len(parts) > 1 and num_elements(parts[-1]) >= MIN_COPIED * sum(map(num_elements, parts)) > 0:
            found.append(row)
            if num_elements(parts[-1]) > num_elements(largest.whole or (0,)):
                largest = GrownTensors(EMPTY, parts[-1], parts[-2])
    inner = union((trace.events.start[found], trace.events.end[found]))
    return largest._replace(host=carried_over(t, inner))
