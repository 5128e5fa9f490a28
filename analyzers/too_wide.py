"""Operators compute in a wider type than their inputs and results.

What it looks for
    float64 operators between tensors of fewer bits. Also float32 matrix products of 16-bit tensors with a 16-bit
    result. Threshold: 3% of the step.

Why it costs
    float64 moves twice the bytes of float32. Most GPUs compute it at 1/32 to 1/64 of the rate.

What to do
    Make float32 at the place that makes the values: at the line of a buffer, an array or a dataset.

How sure
    High that the type is wider. Only you know whether the digits are needed. Needs `diagnose trace`.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at
from diagnose.dataflow.width import TooWide
from diagnose.model.dataflow import Frame
from diagnose.model.records import CallRecord, ExpressionRecord, as_facts
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables.flow import Flow

META = RuleMeta(
    id="too-wide",
    kind="idle",
    order=142,
    host_order=65,
    legend=Legend("operators computed in a wider type than needed"),
    changes=("single-precision",),
    needs=("data flow",),
)


def detect(flow: Flow) -> Iterator[Avoidable]:
    """Yield the operators that compute in a wide type; half of their bytes, and of their time, can be avoided."""
    for one in flow.found.too_wide:
        title = "Operators compute in float64 because weights or buffers are float64"
        if one.is_certain:
            title = f"Operators compute in {one.kind} what comes in and goes out in fewer bits"
        end = f"; {at(one.use_line)} makes the result narrow again." if one.use_line is not None else "."
        text = f"From {at(one.value_line)} on, operators compute in {one.kind}{end}"
        made, expression = _made(flow, one) or (None, None)
        line = Frame(made.file, made.begin[0], "") if made is not None else one.input_line
        if line is not None:
            text = f"{at(line).capitalize()} makes float64. {text}"
        lines = (line, one.value_line, one.use_line, *one.work.lines)
        facts: dict[str, object] = {"kind": one.kind, "names": one.names}
        if made is not None and expression is not None:
            facts |= {"made": as_facts(made), "is_tensor": expression.is_tensor}
        yield Avoidable(title, text, one.work, lines, facts, 0.5, "high" if one.is_certain else "medium")


def _made(flow: Flow, one: TooWide) -> tuple[CallRecord, ExpressionRecord] | None:
    """Return the user's expression that makes what comes in wide: a buffer, or a part of samples with its shape."""
    if one.source == "kept":
        return next((each for each in flow.wide if each[0].name in one.names), None)
    ends = {f"float64 {shape[n:]}" for shape in one.shapes for n in range(2)}  # of a sample, or of a batch
    return next((each for each in flow.wide if one.source == "input" and each[1].what in ends), None)


_RULE = AvoidableRule(META, detect, shortens_gaps=False, frees_host=False)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find
