"""Dropout draws its masks number by number on the CPU.

What it looks for
    Without a device: masks that are drawn (`aten::bernoulli_`) for `F.dropout` and `F.scaled_dot_product_attention`,
    whoever calls them, of 50 us or more each. Four fifths of that, which another way of drawing spares, are at least
    5 % of the step.

Why it costs
    Where MKL does not draw, torch draws a number of 53 bits for each element, one after the other, on one core. A mask
    of 4 million takes 23 ms, dropping the elements by it 3 ms.

What to do
    Draw four numbers of 16 bits at a time: one line at the top of the script. Of a large sparse input drop only what
    is not zero.

How sure
    High: the draws are operators of their own. Those of an LSTM are made within its operator, where no Python reaches
    them, and do not count.
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
    legend=Legend("dropout drew its masks", "#6a8f2a"),
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
    return worth_claiming(t, left, spared(t), 0.05)


def find(t: Tables) -> list[Finding]:
    """Name how many masks a step draws, and how long that takes."""
    events, rows = t.trace.events, dropout_draws(t)
    took = duration(float(np.sum(events.end[rows] - events.start[rows])) / t.steps.num)
    text = f"A step draws {plural(len(rows) / t.steps.num, 'mask')} of dropout, in {took}."
    title = "Dropout draws its masks number by number"
    return idle_finding(t, IdleRule(META.id, title, probe="middle", evidence=lambda _t, _o: [text]))


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
