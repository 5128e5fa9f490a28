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

from diagnose.changes.common.applies import at_line, is_in_a_library, own_place
from diagnose.changes.common.change import Advice, ByHand, Change, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


_OF_DDP = ("aten::flatten_dense_tensors", "aten::unflatten_dense_tensors")


def _applies(_program: Program, finding: Finding) -> str:
    if not finding.facts.get("operator"):
        return "the operators that compute there launch kernels or copy: they run on the device already"
    if str(finding.facts["operator"]).startswith("Optimizer."):
        return "the optimizer computes where its parameters are"
    if finding.facts["operator"] in _OF_DDP:
        return "DistributedDataParallel calls it to hand its buffers back"
    if is_in_a_library(finding):
        return "a library calls it on tensors of its own"
    return ""


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    place = own_place(finding)
    operator, share = finding.facts["operator"], finding.facts.get("on_host", 1.0)
    most = float(share) if isinstance(share, float) else 1.0
    at = f" ({at_line(place)})" if place else ""
    return Advice(
        title=f"Move {operator} to the device or into the loader's workers{at}",
        before=(place.code or "") if place else "",
        after="device = next(model.parameters()).device\n"
        "x = x.to(device, non_blocking=True)   # its inputs first; then the operator runs there\n"
        "# or, where it only needs the sample: in the dataset's __getitem__, which DataLoader workers run ahead",
        least=most / 2,
        most=most,
    )


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
