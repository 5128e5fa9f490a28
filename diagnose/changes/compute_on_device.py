"""Compute on the device, or ahead of the step.

What it does
    Runs an operator where its inputs are needed: on the device, by moving its inputs there first, or in the loader's
    workers, which run ahead of the step.

What to watch
    An operator that runs on the device may round differently, and a result that the host reads back waits for the
    device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import own_place
from diagnose.changes.common.change import Advice, ByHand, Change, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    place = own_place(finding)
    operator = next((w.op for w in finding.where if w.op), "") or "the operator"
    at = f" ({place.file}:{place.line})" if place else ""
    return Advice(
        title=f"Move {operator} to the device or into the loader's workers{at}",
        before=(place.code or "") if place else "",
        after="device = next(model.parameters()).device\n"
        "x = x.to(device, non_blocking=True)   # its inputs first; then the operator runs there\n"
        "# or, where it only needs the sample: in the dataset's __getitem__, which DataLoader workers run ahead",
        least=0.5,
    )


def _applies(_program: Program, finding: Finding) -> str:
    first = finding.where[0] if finding.where else None
    own = first is not None and (first.op or "").startswith("Optimizer.")
    return "the optimizer computes where its parameters are" if own else ""


CHANGE = Change(
    id="compute-on-device",
    title="Compute on the device, or ahead of the step",
    numerics=rounding("kernels of the device round differently; compare the loss of the first steps"),
    patch=ByHand("which inputs the operator needs, and who reads its result, only the script's author knows"),
    edit=ByHand("which inputs the operator needs only the script's author knows"),
    advice=_advice,
    applies=_applies,
    without_remedy="a line of the script's own",
)
