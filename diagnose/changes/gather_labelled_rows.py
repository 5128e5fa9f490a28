"""Compute the logits of labelled positions alone.

What it does
    Gathers the rows that have a label before the projection to the classes, so that neither it nor the loss nor their
    backward pass computes the rows of targets that are `ignore_index`.

What to watch
    The number of rows then depends on the data: on a device the mask's index waits for it, once a step; compiled models
    want `dynamic=True`, and a CUDA graph holds one number: there gather a fixed number of rows, filled up with ignored
    ones (`torch.topk` of the mask). What reads the logits of all positions, as a metric, gets the labelled ones alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_kind
from diagnose.changes.common.change import Advice, ByHand, Change, rounding
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

MIN_SAVED_SHARE = 0.6  # of the ignored rows' share: the gradient of the weights is written whole, and rows are gathered
_BEFORE = """logits = head(hidden)
loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten())"""
_AFTER = """keep = labels != -100                       # the loss's ignore_index
logits = head(hidden[keep])                 # rows with a label alone: (labelled, classes)
loss = F.cross_entropy(logits, labels[keep])
# predictions of the next token: keep = labels[:, 1:] != -100, then hidden[:, :-1][keep] and labels[:, 1:][keep]"""


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    ignored = finding.facts.get("ignored")
    share = percent(ignored, 0) if isinstance(ignored, float) else ""
    return Advice(
        title=f"Compute the logits of labelled positions alone ({share} of the targets are ignored)" if share else "",
        before=_BEFORE,
        after=_AFTER,
        least=MIN_SAVED_SHARE,
        needs="a number of rows that depends on the data: one wait for the device, and no CUDA graph or fixed shapes",
    )


CHANGE = Change(
    id="gather-labelled-rows",
    title="Compute the logits of labelled positions alone",
    numerics=rounding("sums over fewer rows are taken in another order"),
    applies=to_kind("ignored rows"),
    advice=_advice,
    patch=ByHand("where the model makes its logits only the script's author knows"),
    edit=ByHand("where the model makes its logits only the script's author knows"),
    without_remedy="two lines of the script's own",
)
