"""Stages of a pipeline that take turns: what they would take if each worked on its next micro-batch meanwhile.

A stage that sends a micro-batch and waits for its gradient before it begins the next one leaves one stage at work at a
time. Times of ranks show it without a common clock: what all of them work in a step is then no longer than the step.
Where micro-batches follow each other, a step takes one through all stages, and the slowest stage for each further one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from diagnose.model.events import Kind
from diagnose.model.intervals import subtract, total, union
from diagnose.model.limits import MAJORITY
from diagnose.model.locations import Where
from diagnose.ranks.profile import COMMUNICATION, RankProfile, Receives
from diagnose.tables import Tables
from diagnose.tables.names import matching
from diagnose.tables.passes import passes_per_update

_RECEIVES, _CALLS = re.compile(r"^gloo:recv"), re.compile(r"^c10d::(send|recv)")


class StageTurns(NamedTuple):
    """What the stages of a pipeline work and wait; ranks are indices in the list of ranks."""

    first: int  # the rank that sends first in a step, and waits for what comes back
    num_micro: int  # micro-batches of a step
    at_once: float  # stages that work at once, mean over time
    step_ns: float
    pipelined_ns: float  # of a step whose micro-batches follow each other
    waited_ns: tuple[float, ...]  # by rank, a step
    where: tuple[Where, ...]  # where the first rank waits, then the others


def receives_of(t: Tables) -> Receives | None:
    """Return what a rank receives from single other ranks on the host, None if nothing."""
    events = t.trace.events
    rows = t.in_window(matching(t.trace, (Kind.ANNOTATION, Kind.OP), _RECEIVES))
    if t.device_id >= 0 or not len(rows):
        return None
    calls = np.sort(t.in_window(matching(t.trace, (Kind.OP,), _CALLS)), kind="stable")
    first = calls[np.searchsorted(events.start[calls], t.steps.start).clip(max=len(calls) - 1)] if len(calls) else calls
    sends = sum(t.name(row).startswith("c10d::send") for row in first.tolist())
    waits = subtract(union((events.start[rows], events.end[rows])), t.in_ops)
    return Receives(
        per_step=len(rows) / t.steps.num,
        waited_ns=total(waits) / t.steps.num,
        passes=passes_per_update(t) or 0,
        sends_first=2 * sends > len(first),
    )


def stage_turns(ranks: Sequence[RankProfile]) -> StageTurns | None:
    """Return the stages that exchange micro-batches one by one, None if the ranks are no pipeline."""
    known = [p.receives for p in ranks if p.receives is not None]
    asking = [i for i, p in enumerate(ranks) if p.receives is not None and p.receives.sends_first]
    if len(ranks) < 2 or len(known) < len(ranks) or not asking:
        return None
    step_ns = float(np.median([p.step_ns for p in ranks]))
    own = np.array([max(step_ns - each.waited_ns, 0.0) for each in known])
    num = max(min(round(each.passes or each.per_step) for each in known), 1)
    parts = num if num > 1 else 4  # as which one batch is cut where a step sends it whole
    moved_ns = max(step_ns - float(own.sum()), 0.0)  # while no rank works: transfers, which stay
    overlapped_ns = float(own.sum() + (parts - 1) * own.max()) / parts
    if step_ns - moved_ns - overlapped_ns < MAJORITY * (float(own.sum()) - overlapped_ns):
        return None  # most of what can overlap does
    return StageTurns(
        asking[0],
        num,
        float(own.sum() / step_ns),
        step_ns,
        overlapped_ns + moved_ns,
        tuple(each.waited_ns for each in known),
        tuple(place for i in (asking[0], *(n for n in range(len(ranks)) if n != asking[0])) for place in _at(ranks[i])),
    )


def _at(p: RankProfile) -> tuple[Where, ...]:
    """Return the line at which a rank waits longest."""
    waits = max((each for each in p.lines if each.cause == COMMUNICATION), key=lambda each: each.spent_ns, default=None)
    return (Where(waits.file, waits.line, waits.function, code=waits.code or None),) if waits is not None else ()
