"""Dropout draws its masks number by number on the CPU.

What it looks for
    CPU only: calls of `aten::bernoulli_` for dropout or attention, of 50 µs or more each. Threshold: a saving of 5% of
    the step.

Why it costs
    Without MKL, torch draws the mask on one core, element by element. A mask of 4 million elements takes 23 ms.

What to do
    Add `from diagnose.kernels.dropout import use_fast_dropout` and call `use_fast_dropout()` at the top of the script.

How sure
    High. Dropout inside `nn.LSTM` does not count.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, worth_claiming
from diagnose.model.arrays import Rows
from diagnose.model.diagnosis import Finding
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, contains
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host import host_rows, outermost
from diagnose.text.numbers import duration, plural

META = RuleMeta(
    id="dropout-draws",
    kind="idle",
    order=135,
    host_order=87,
    legend=Legend("dropout drew its masks"),
    changes=("fast-dropout",),
    cause="host-work",
)
SPARED_SHARE = 0.8  # of a draw, by drawing four numbers at a time: 65,536 to 4 million on two cores took 14 to 20 %
_DRAW = "aten::bernoulli_"
_CALLED = r"^aten::(dropout|scaled_dot_product_attention)$"  # by functions that Python can replace


def claim(_t: Tables, _left: Intervals) -> Intervals:
    """Claim nothing beside a device, which draws a mask in the kernel that drops by it."""
    return EMPTY


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim what another way of drawing spares."""
    return worth_claiming(t, left, spared(t))


def find(t: Tables) -> list[Finding]:
    """Name how many masks a step draws, and how long that takes."""
    events, rows = t.trace.events, dropout_draws(t)
    took = duration(float(np.sum(events.end[rows] - events.start[rows])) / t.steps.num)
    text = f"A step draws {plural(len(rows) / t.steps.num, 'mask')} of dropout, in {took}."
    title = "Dropout draws its masks number by number"
    return idle_finding(t, IdleRule(META.id, title, probe="middle", evidence=[text]))


def dropout_draws(t: Tables) -> Rows:
    """Return the draws of dropouts and attentions that Python calls; those of an `nn.LSTM` no Python replaces."""
    names = t.trace.names
    if t.device_id >= 0 or _DRAW not in names:
        return np.empty(0, np.intp)
    events, rows = t.trace.events, t.in_window(host_rows(t.trace, t.main, Kind.OP))
    outer = outermost(t.trace, rows)
    is_called = np.array([re.match(_CALLED, name) is not None for name in names], bool)
    dropouts = t.covering(outer[is_called[events.name[outer]]])
    draws = rows[events.name[rows] == names.index(_DRAW)]
    found: Rows = draws[contains(dropouts, events.start[draws]) & (events.end[draws] - events.start[draws] >= 50_000)]
    return found


def spared(t: Tables) -> Intervals:
    """Return what another way of drawing takes less, at the ends of the draws."""
    start, end = (column[dropout_draws(t)] for column in (t.trace.events.start, t.trace.events.end))
    return Intervals(end - ((end - start) * SPARED_SHARE).astype(np.int64), end)
