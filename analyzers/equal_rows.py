"""Operators compute many equal rows, or a linear layer has an enlarged input.

What it looks for
    Operators that compute each row of a batch separately, on rows that are copies of others. Examples are products,
    convolutions, factorizations, norms and attention. Views, gathers and overlapping windows repeat rows. Also linear
    layers of what was interpolated, or joined or added up of such rows. Threshold: 3% of the step, backward included.

Why it costs
    Equal rows cost as much as different ones: a message per edge instead of per node, a frame once per window. A 1x1
    convolution after an interpolation multiplies each pixel several times.

What to do
    Compute first, then gather, expand, repeat or interpolate the result. If rows join two parts, multiply each part by
    its slice of the weight and add the products.

How sure
    High. Needs `diagnose trace`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at, last_parts
from diagnose.analyzers.common.rewrite import Edits, applied_first
from diagnose.model.events import Kind
from diagnose.model.intervals import Intervals, among
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.flow import Flow
from diagnose.tables.host import outermost
from diagnose.text.numbers import percent

META = RuleMeta(
    id="equal-rows",
    kind="idle",
    order=144,
    host_order=67,
    legend=Legend("operators computed equal or enlarged rows"),
    changes=("compute-first",),
    needs=("data flow",),
)


def detect(flow: Flow) -> Iterator[Avoidable]:
    """Yield the lines whose operators compute rows that equal others, and linear layers of enlarged inputs."""
    yield from sorted((*_equal(flow), *_enlarged(flow)), key=lambda one: -one.work.share * one.avoidable)


def _equal(flow: Flow) -> Iterator[Avoidable]:
    for one in flow.found.equal_rows:
        line = one.work.line
        what, kind = ("positions", "spread") if one.is_by_pixel else ("rows", "plain")
        makes = "it repeats" if one.value_line == line else f"{at(one.value_line)} makes them of"
        text = f"{percent(one.avoidable, 0)} of the {what} at {at(line)} equal others: {makes} {one.num_rows:,}."
        titles = {
            "plain": "Operators compute many equal rows",
            "spread": "Operators compute the same at many positions",
        }
        yield Avoidable(titles[kind], text, one.work, (one.value_line, line), {"kind": kind}, one.avoidable)


def _enlarged(flow: Flow) -> Iterator[Avoidable]:
    for one in flow.found.enlarged_inputs:
        kind, makes = ("interpolated", "interpolates") if one.is_interpolated else ("joined", "makes")
        text = (
            f"The linear layer at {at(one.map_line)} multiplies {one.num_rows:,} rows, which {at(one.enlarging_line)} "
            f"{makes} from the content of {one.fewer:,}."
        )
        title, lines = "A linear map works on an input that was enlarged", (one.enlarging_line, one.map_line)
        edits: Edits = ()
        if one.is_interpolated and one.map_line is not None and one.enlarging_line is not None:
            edits = applied_first(flow.source, one.enlarging_line, one.map_line, one.modules)
        yield Avoidable(title, text, one.work, lines, {"kind": kind}, one.avoidable, edits=edits)


def spared(t: Tables, flow: Flow, one: Avoidable) -> Intervals:
    """Return the last part of each operator that the script calls, but for calls that do more than these.

    A recurrent layer multiplies its input within one: nothing can be done to the product alone.
    """
    operators, events, every = flow.found.graph.operators, t.trace.events, t.host_rows(Kind.OP)
    calls = outermost(t.trace, every[events.thread[every] == t.main])
    mine = set(one.work.operators)
    forward = [i for i, each in enumerate(operators) if each.writes and each.phase != "backward"]
    operator = np.repeat(forward, [len(flow.rows[i]) for i in forward])
    rows = np.concatenate([np.empty(0, np.intp), *(flow.rows[i] for i in forward)])
    call = np.searchsorted(events.start[calls], events.start[rows], side="right")
    is_mine = among(operator, np.array(sorted(mine), np.intp))
    length = np.where(is_mine, 1, -1) * (events.end[rows] - events.start[rows])
    is_more = np.bincount(call, length, minlength=len(calls) + 1) < 0
    parts = set(operator[is_mine & is_more[call]].tolist())
    work = flow.found.graph.work(i for i in mine if parts.isdisjoint((i, operators[i].forward)))
    return last_parts(t, flow, one._replace(work=work))


_RULE = AvoidableRule(META, detect, time_of=spared, shortens_gaps=False, frees_host=False)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find
