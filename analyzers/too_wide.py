"""Operators compute in a wider type than what goes in and what comes out.

What it looks for
    Operators in float64 between tensors of fewer bits, and matrix products in float32 of 16-bit tensors whose result
    becomes 16-bit again. At least 3 % of the step.

Why it costs
    float64 moves twice the bytes of float32, and most GPUs compute it at 1/32 to 1/64 of the rate.

What to do
    Leave the conversion out, or convert where the data enter the script.

How sure
    High that the type is wider, medium if weights or a state have it too. Whether the digits are needed only the
    script's author knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at
from diagnose.model.diagnosis import Confidence
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables.flow import Flow

if TYPE_CHECKING:
    from diagnose.dataflow.width import TooWide

META = RuleMeta(
    id="too-wide",
    kind="idle",
    order=142,
    host_order=65,
    legend=Legend("operators computed in a wider type than needed", "#6f8a2b"),
    changes=("single-precision",),
    needs=("data flow",),
    former=(("float64", "double-precision"),),
)
AVOIDABLE = 0.5  # of the time: half of the bytes


def _detect(flow: Flow) -> list[Avoidable]:
    return [_part(one) for one in flow.found.too_wide]


def _part(one: TooWide) -> Avoidable:
    title = f"Operators compute in {one.kind} what comes in and goes out in fewer bits"
    if not one.is_certain:
        title = "Operators compute in float64, as weights or a state do"
    confidence: Confidence = "high" if one.is_certain else "medium"
    text = f"From {at(one.value_line)} on, operators compute in {one.kind}"
    text += f"; {at(one.use_line)} makes the result narrow again." if one.use_line is not None else "."
    lines = (one.value_line, one.use_line, *one.work.lines)
    return Avoidable(title, text, one.work, lines, {"kind": one.kind}, AVOIDABLE, confidence)


_RULE = AvoidableRule(META, _detect, shortens_gaps=False)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find
