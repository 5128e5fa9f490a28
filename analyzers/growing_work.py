"""Operators take longer from step to step because their inputs grow.

What it looks for
    Operators that read more in the second of two recorded steps, such as a mean over all predictions so far. Also hooks
    registered in each step, and `torch.cat` that appends to stored data. Threshold: 3% of the step.

Why it costs
    The cost of the run grows with the square of its steps.

What to do
    Keep a running total, or drop old entries. Register a hook once. Allocate a buffer once and write each piece into
    its slice.

How sure
    High that the work grew between the two steps. Needs `diagnose trace`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.analyzers.common.advice import Advice, identical, of_kind
from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at, avoidable_time, held_values
from diagnose.model.diagnosis import Facts, Finding
from diagnose.model.intervals import EMPTY, Intervals
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.flow import Flow

META = RuleMeta(
    id="growing-work",
    kind="idle",
    order=122,
    host_order=56,
    legend=Legend("operators worked on what grows from step to step"),
    changes=("bound-work", "preallocate"),
    needs=("data flow",),
)
_PREALLOCATE = Advice(
    id="preallocate",
    title="Write each piece into a tensor that is made once, instead of concatenating{there}",
    numerics=identical(),
    needs="a known longest length, and memory for it",
    watch="CUDA graphs come after it: they hold one length.",
    when=of_kind("copied"),
    least=0.5,
    most=0.95,
)
ADVICE = (
    replace(
        _PREALLOCATE,
        needs="a known longest length, and memory for it; the newest rows are written over the oldest",
        when=lambda f, _: f.facts.get("kind") == "copied" and f.facts.get("in_rows"),
        least=0.7,
        most=1.0,
    ),
    _PREALLOCATE,
)


def detect(flow: Flow) -> list[Avoidable]:
    """Return what grows, the longest first; where that is concatenations alone, as copies of what is stored."""
    again = flow.found.copied_again
    copied = {i for one in again for i in one.work.operators}
    found = [one for one in flow.found.growing_work if not copied.issuperset(one.work.operators)]
    extending = {one.work.line for one in found} | {one.work.line for one in again}
    parts = []
    for one in found:
        line, title = one.work.line, "Operators work on values that grow from step to step"
        made = f"; {at(one.value_line)} makes what grows." if one.value_line not in (None, line) else "."
        text = f"read {one.last_elements:,} elements in a step, {one.first_elements:,} in the one before{made}"
        if one.last_calls > one.first_calls:
            title = "Each step runs operators more often than the one before"
            text = f"run {one.last_calls:,} times in a step, {one.first_calls:,} times in the one before, and most "
            text += "compute the same again."
        lines = (*one.work.lines, one.value_line)
        if one.value_line in extending:  # the line that makes a tensor longer stands before those that only read it
            lines = (one.value_line, *one.work.lines)
        facts = {"kind": "growing", "by_calls": one.last_calls > one.first_calls}
        parts.append(Avoidable(title, f"Operators of {at(line)} {text}", one.work, lines, facts))
    for copy in again:
        whole, piece = (" × ".join(map(str, shape)) for shape in (copy.whole, copy.piece))
        num, line = len(copy.work.operators), copy.work.line
        text = f"{num} times a step {at(line)} copies a tensor ({whole}) to put {piece} to it."
        stored: Facts = {"kind": "copied", "in_rows": copy.whole[1:] == copy.piece[1:]}
        title = "A large tensor is copied each time that little is put to it"
        parts.append(Avoidable(title, text, copy.work, copy.work.lines, stored, copy.avoidable))
    return sorted(parts, key=lambda one: -one.work.share * one.avoidable)


def _time(t: Tables, flow: Flow, one: Avoidable) -> Intervals:
    """Return what grows; nothing of a loop that only has more turns for one batch than for the one before."""
    rows = np.concatenate([flow.rows[i] for i in one.work.operators])
    steps = np.searchsorted(t.steps.start, t.trace.events.start[rows], side="right") - 1
    calls = np.bincount(steps, minlength=t.steps.num)
    if one.facts.get("by_calls") and (np.diff(calls) < 0).any():
        return EMPTY
    return avoidable_time(t, flow, one)


_RULE = AvoidableRule(META, detect, time_of=_time)
claim, claim_host = _RULE.claim, _RULE.claim_host


def find(t: Tables) -> list[Finding]:
    """Name what grows, and the lines whose values are held from step to step."""
    return [replace(each, evidence=(*each.evidence, *held_values(t))) for each in _RULE.find_in_each(t)]
