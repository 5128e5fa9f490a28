"""How often a step calls the model without gradients, as operators and module frames show."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, contains
from diagnose.tables import Tables
from diagnose.tables.host import Layers, host_rows, outermost
from diagnose.tables.names import BACKWARD, MODULE

__all__ = ["HEAVY", "NoGradCalls", "no_grad_calls"]

HEAVY = re.compile(
    r"^aten::(linear|addmm|mm|bmm|baddbmm|matmul|einsum|conv\w*|_?convolution|embedding\w*|lstm\w*|gru\w*|rnn_\w+|"
    r"\w*attention\w*|batch_norm|layer_norm|multi_head\w*)$"
)
_NONE = Layers((), (), EMPTY.end)


class NoGradCalls(NamedTuple):
    """Per step."""

    operators: float  # products, convolutions and the like that Python calls with gradients off
    modules: float  # calls of outermost modules that these are in; 0 where no module frames were recorded
    all_modules: float  # calls of outermost modules, with gradients or without


def no_grad_calls(t: Tables) -> NoGradCalls | None:
    """Return what a step computes of models without gradients; None where no operator has a sequence number.

    With gradients on torch numbers each operator that has one; what a backward pass calls itself is left out.
    """
    named = t.named
    events = named.trace.events
    rows = named.in_window(host_rows(named.trace, named.main, Kind.OP))
    if not len(rows) or not (events.sequence[rows] >= 0).any():
        return None
    outer = outermost(named.trace, rows)
    is_heavy = np.array([HEAVY.match(name) is not None for name in named.trace.names], bool)
    heavy = outer[is_heavy[events.name[outer]]]
    for apart in (named.updates, named.covering(named.calls(BACKWARD, Kind.OP, Kind.ANNOTATION))):
        heavy = heavy[~contains(apart, events.start[heavy])]
    mine = heavy[events.sequence[heavy] < 0]
    counts = len(mine), len(_outermost_modules(named, mine)), len(_outermost_modules(named, heavy))
    return NoGradCalls(*(count / named.steps.num for count in counts))


def _outermost_modules(t: Tables, rows: Rows) -> set[int]:
    """Return the rows of the outermost module frames that are open at these operators."""
    frames, start = t.frame_layers.get(t.main, _NONE), t.trace.events.start[rows]
    is_module = np.array([MODULE.match(name) is not None for name in t.trace.names], bool)
    found, pending = set[int](), np.ones(len(rows), bool)
    for depth in range(len(frames.rows)):
        row = frames.open_in(depth, start)
        hit = pending & (row >= 0)
        hit[hit] = is_module[t.trace.events.name[row[hit]]]
        found.update(row[hit].tolist())
        pending &= ~hit
    return found
