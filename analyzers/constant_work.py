"""Each step computes the same values again.

What it looks for
    Operators with the same inputs and results in two recorded steps: masks, grids, positions, a normalized adjacency
    matrix. Threshold: 3% of the step.

Why it costs
    The result is known after the first step.

What to do
    Compute it once, before the loop or in the constructor. A buffer keeps it: `self.register_buffer(...)`.

How sure
    High if no input comes with the step. Medium if each step builds the same input again. Needs `diagnose trace`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at
from diagnose.model.diagnosis import Confidence
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables.flow import Flow

if TYPE_CHECKING:
    from diagnose.dataflow.repeats import ConstantWork

META = RuleMeta(
    id="constant-work",
    kind="idle",
    order=137,
    host_order=62,
    legend=Legend("operators computed what is the same in each step"),
    changes=("compute-less-often",),
    needs=("data flow",),
)
_NAMES = {"triangular": "mask", "one-hot": "one-hot rows"}


def _detect(flow: Flow) -> list[Avoidable]:
    return [_part(one) for one in flow.found.constant_work]


def _part(one: ConstantWork) -> Avoidable:
    shape = " × ".join(map(str, one.shape)) or "one number"
    text = f"The {_NAMES.get(one.kind, 'tensor')} ({shape}) of {at(one.value_line)} has the same content in both steps"
    text += f"; {at(one.use_line)} uses it." if one.use_line is not None else "."
    confidence: Confidence = "high" if one.is_certain else "medium"
    title = "Operators compute values that are the same in each step"
    lines = (*one.work.lines, one.value_line)
    return Avoidable(title, text, one.work, lines, {"kind": "constant"}, confidence=confidence)


_RULE = AvoidableRule(META, _detect)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find
