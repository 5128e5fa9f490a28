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

from collections.abc import Iterator

from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at
from diagnose.model.diagnosis import Confidence
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables.flow import Flow

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


def detect(flow: Flow) -> Iterator[Avoidable]:
    """Yield what is the same in each step."""
    for one in flow.found.constant_work:
        shape, what = " × ".join(map(str, one.shape)) or "one number", _NAMES.get(one.kind, "tensor")
        text = f"The {what} ({shape}) of {at(one.value_line)} has the same content in both steps"
        text += f"; {at(one.use_line)} uses it." if one.use_line is not None else "."
        title = "Operators compute values that are the same in each step"
        sure: Confidence = "high" if one.is_certain else "medium"
        yield Avoidable(title, text, one.work, (*one.work.lines, one.value_line), {"kind": "constant"}, confidence=sure)


_RULE = AvoidableRule(META, detect)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find
