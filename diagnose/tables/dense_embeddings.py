"""What the backward pass of an embedding queues."""

from __future__ import annotations

import re

import numpy as np

from diagnose.model.arrays import Mask, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import contains
from diagnose.tables import Tables

__all__ = ["in_embedding_backward"]

_BACKWARD = re.compile(
    r"^autograd::engine::evaluate_function: Embedding(Bag)?Backward|embedding(_bag)?_dense_backward$"
)


def in_embedding_backward(t: Tables, tasks: Rows) -> Mask:
    """Return which tasks were launched inside the backward pass of an embedding."""
    launch = t.tasks.launch[tasks]
    inside = t.covering(t.calls(_BACKWARD, Kind.OP))
    found: Mask = (launch >= 0) & contains(inside, t.trace.events.start[np.maximum(launch, 0)])
    return found
