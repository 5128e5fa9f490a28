"""Loops of the script that a data flow shows: what they are, and what calling their operators takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from diagnose.analyzers.common.avoidable import Avoidable, at, calling_share, issuer, last_parts
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, distinct, intersect, subtract, union
from diagnose.tables import Tables
from diagnose.tables.dispatch import overhead
from diagnose.tables.flow import Flow
from diagnose.tables.host import outermost
from diagnose.tables.issuers import issued_in_loop

if TYPE_CHECKING:
    from diagnose.dataflow.loops import Loop

__all__ = ["MIN_STEP_SHARE", "calling", "loop_part", "python_calls"]

MIN_STEP_SHARE = 0.05  # of the step: fewer operators take a part of it themselves


def loop_part(one: Loop, title: str, text: str) -> Avoidable:
    """Return a loop as a part of a finding."""
    facts = {"kind": one.kind, "num_calls": one.num_calls, "issuer": issuer(one.line, one.work)}
    start = f"The loop at {at(one.line)} makes {one.num_calls} calls a step"
    return Avoidable(
        title,
        f"{start}{text}",
        one.work,
        (one.line, *one.work.lines),
        facts,
        calling_share(one.work, one.overhead_share),
    )


def calling(t: Tables, flow: Flow, one: Avoidable) -> Intervals:
    """Return what calling a loop's operators takes: the Python between them, and of each the last part.

    Without a device what would be launch-bound of it is its own.
    Nothing of what one operator of torch calls, as a recurrent layer does on a CPU: the script has no such loop.
    """
    num = one.facts.get("num_calls")
    if isinstance(num, int) and python_calls(t, flow, one.work.operators) < num:
        return EMPTY
    span, work = flow.span_of(t, one.work.operators), flow.time_of(t, one.work.operators)
    if t.device_id >= 0:
        return span
    return intersect(span, union(last_parts(t, flow, one), overhead(t), issued_in_loop(t), subtract(span, work)))


def python_calls(t: Tables, flow: Flow, work: Iterable[int]) -> float:
    """Return how many operators the forward pass calls of some in a step, those left out that others call."""
    operators = t.capture.dataflow.operators if t.capture.dataflow is not None else ()
    forward = [flow.rows[i] for i in work if operators[i].phase != "backward"]
    rows = np.sort(np.concatenate([np.empty(0, np.intp), *forward]))
    mine = rows[t.trace.events.thread[rows] == t.main]
    every = t.host_rows(Kind.OP)
    every = outermost(t.trace, every[t.trace.events.thread[every] == t.main])
    at_row = np.searchsorted(t.trace.events.start[every], t.trace.events.start[mine], side="right") - 1
    return len(distinct(at_row)) / t.steps.num
