"""What the host spends on calling operators instead of on their work, where there is no device."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from diagnose.model.arrays import Floats, Rows
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, covered, grouped, intersect, span, subtract, total, union
from diagnose.model.limits import MAX_READY_SHARE, MIN_RECURRENCES
from diagnose.tables import Tables
from diagnose.tables.host import Layers, host_rows, intervals_of, layers
from diagnose.tables.host_gaps import gaps_of_every_step, ordinals, outside_operators, ready_share
from diagnose.tables.plain_steps import steady_beside
from diagnose.tables.run_steps import variation

# Calling an operator from Python takes 2 to 10 µs on a host CPU, recorded 3 to 15: one that is over in less has
# hardly done more than be called.
TINY_OPERATOR_NS = 15_000
# Below this share of the step the rest dominates, and fusing small operators would not be felt.
MIN_OVERHEAD_SHARE = 0.3


class Unrecorded(NamedTuple):
    """What a step that is not recorded takes, and what of it is spent on calling operators at least; times in ns."""

    step_ns: float
    calls: float  # of operators by Python and by the backward pass, nested ones left out
    calling_ns: float


def operator_work(t: Tables) -> Intervals:
    """Return the time in which operators work: they take ``TINY_OPERATOR_NS`` or more without those they call.

    Judged by what the same call of most steps takes: a thread that loses its core in a small operator is not working.
    """
    events, parts = t.trace.events, []
    usual = _usual_own_ns(t)
    for found in _nested(t):
        for rows, inner in _with_inner(found):
            works = rows[usual[rows] >= TINY_OPERATOR_NS]
            parts.append(subtract(t.covering(works), intervals_of(t.trace, inner)) if len(works) else EMPTY)
    return intersect(union(*parts), span(*t.steps.window)) if parts and len(events) else EMPTY


def _nested(t: Tables) -> list[Layers]:
    return [layers(t.trace, host_rows(t.trace, thread, Kind.OP)) for thread in t.threads]


def _with_inner(found: Layers) -> list[tuple[Rows, Rows]]:
    """Return the operators of each layer with those that they call."""
    rows = [each.astype(np.intp) for each in found.rows]
    return list(pairwise([*rows, np.empty(0, np.intp)]))


def _own_ns(t: Tables) -> Floats:
    """Return for each event what an operator takes itself, without the ones that it calls."""
    events = t.trace.events
    own = np.zeros(len(events))
    for found in _nested(t):
        for rows, inner in _with_inner(found):
            length = events.end[rows] - events.start[rows]
            own[rows] = length - covered(intervals_of(t.trace, inner), events.start[rows], events.end[rows])
    return own


def _usual_own_ns(t: Tables) -> Floats:
    """Return for each event what an operator takes itself, as the same call of the steps does in the median."""
    events, rows = t.trace.events, t.host_rows(Kind.OP)
    own: Floats = _own_ns(t).copy()
    if len(rows):
        at = ordinals(t)[rows]
        alike = grouped(events.name[rows].astype(np.int64) * (int(at.max()) + 1) + at).of
        order = np.lexsort((own[rows], alike))
        num = np.bincount(alike)
        middle = np.cumsum(num) - num + (num - 1) // 2
        usual = own[rows][order][middle][alike]
        # Steps whose same call tells what it usually takes.
        own[rows] = np.where(num[alike] >= MIN_RECURRENCES, usual, own[rows])
    return own


def overhead(t: Tables) -> Intervals:
    """Return the time of calling operators: Python between them, and in them all that is no work.

    Nothing where all of it is less than 30 % of the window: the step is work then.
    """
    window = span(*t.steps.window)
    between = subtract(outside_operators(t), t.host_gaps)
    in_operators = subtract(t.covering(t.host_rows(Kind.OP)), operator_work(t))
    calls = intersect(union(in_operators, between), window)
    # A thread loses its core anywhere. What it lost in calls counts for these, but does not make them the answer.
    # How much longer small operators took than the same calls of most steps, where that is too long.
    rows = t.in_window(t.host_rows(Kind.OP))
    own, usual = _own_ns(t)[rows], _usual_own_ns(t)[rows]
    lost_ns = float((own - usual)[(usual < TINY_OPERATOR_NS) & (own >= TINY_OPERATOR_NS)].sum())
    apart_ns = total(subtract(t.host_gaps, own_gaps(t))) + lost_ns
    return calls if total(calls) - lost_ns >= MIN_OVERHEAD_SHARE * (total(window) - apart_ns) else EMPTY


def own_gaps(t: Tables) -> Intervals:
    """Return the host gaps that are the program's: where the thread had to wait for a core, those of most steps."""
    return t.host_gaps if ready_share(t) < MAX_READY_SHARE else gaps_of_every_step(t)


def unrecorded_calling(t: Tables) -> Unrecorded | None:
    """Return what calling operators takes of a step that is not recorded; None if its length or no call is known.

    Recording makes calls longer, and neither the operators that work nor long intervals outside of operators: what
    these leave of the unrecorded step is calling, whatever recording costs.
    """
    info = t.capture.info
    if info is None or not info.unprofiled_ms or (variation(t.capture) is not None and not steady_beside(t)):
        return None
    step_ns = 1e6 * float(np.median(info.unprofiled_ms))
    loading = subtract(span(*t.steps.window), union(t.in_ops, outside_operators(t)))
    other_ns = total(union(operator_work(t), loading, intersect(own_gaps(t), outside_operators(t)))) / t.steps.num
    if t.capture.recorded_step_ns and t.steps.step_ns > 0:  # the trace was scaled, and work with it
        other_ns *= t.capture.recorded_step_ns / t.steps.step_ns
    calls = sum(len(t.in_window(found.rows[0].astype(np.intp))) for found in _nested(t) if found.rows) / t.steps.num
    return Unrecorded(step_ns, calls, max(step_ns - other_ns, 0.0)) if calls else None


def tiny_share(t: Tables) -> tuple[float, float]:
    """Return how many operators a step calls, and which share of them is tiny."""
    events = t.trace.events
    rows = t.host_rows(Kind.OP)
    start, end = t.steps.window
    rows = rows[(events.start[rows] >= start) & (events.start[rows] < end)]
    tiny = events.end[rows] - events.start[rows] < TINY_OPERATOR_NS
    return len(rows) / t.steps.num, float(np.mean(tiny)) if len(rows) else 0.0
