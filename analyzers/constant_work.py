"""Each step computes the same values again.

What it looks for
    Operators with the same inputs and results in two recorded steps: masks, grids, positions, a normalized adjacency
    matrix. Also arrays that Python makes again, such as filter banks, and caches whose keys never match. Threshold: 3%
    of the step.

Why it costs
    The result is known after the first step.

What to do
    Compute it once, before the loop or in the constructor. A buffer keeps it: `self.register_buffer(...)`.

How sure
    High if no input comes with the step. Medium if each step builds the same input again. Needs `diagnose trace`.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.analyzers.common.avoidable import MIN_WORK_SHARE, Avoidable, AvoidableRule, at, avoidable_time
from diagnose.analyzers.common.kept_values import made_once, missed_cache
from diagnose.analyzers.common.making import making_time
from diagnose.model.diagnosis import Confidence
from diagnose.model.intervals import Intervals, union
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.flow import Flow

META = RuleMeta(
    id="constant-work",
    kind="idle",
    order=137,
    host_order=62,
    legend=Legend("operators computed what is the same in each step"),
    changes=("reuse-result",),
    needs=("data flow",),
)
_NAMES = {"triangular": "mask", "one-hot": "one-hot rows"}


def detect(flow: Flow) -> Iterator[Avoidable]:
    """Yield what is the same in each step."""
    for one in flow.found.constant_work:
        if not one.made_by_python and one.work.share < MIN_WORK_SHARE:
            continue
        shape, what = " × ".join(map(str, one.shape)) or "one number", _NAMES.get(one.kind, "tensor")
        text = f"The {what} ({shape}) of {at(one.value_line)} has the same content in both steps"
        text += f"; {at(one.use_line)} uses it." if one.use_line is not None else "."
        title = "Operators compute values that are the same in each step"
        if one.made_by_python:
            title = "Python makes values that are the same in each step"
        cache = missed_cache(flow.source, one.value_line) if one.value_line is not None else None
        if cache is not None:
            title = f"The cache {cache.name} is filled again in each step"
            if cache.name in flow.source.text(one.value_line):
                text += f" {cache.words}."
        edits = cache.edits if cache is not None else ()
        if cache is None and one.value_line is not None and one.is_whole and not one.with_gradients:
            edits = made_once(flow.source, one.value_line)
        sure: Confidence = "high" if one.is_certain or edits else "medium"
        lines = (*one.work.lines, one.value_line)
        facts = {
            "kind": "constant",
            "is_part": not one.is_whole,
            "cache": cache.name if cache is not None and edits else "",
        }
        yield Avoidable(title, text, one.work, lines, facts, confidence=sure, edits=edits)


def _time(t: Tables, flow: Flow, one: Avoidable) -> Intervals:
    """Return what goes with some operators, and with the Python that makes what they bring in."""
    return union(avoidable_time(t, flow, one), making_time(t, flow, one.work.operators))


_RULE = AvoidableRule(META, detect, time_of=_time, min_work=0.0, by_time=True)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find
