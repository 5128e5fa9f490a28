"""Read results back one step later.

What it does
    Copies a result to the host without waiting for it, and reads it when it has arrived: one step later.

What to watch
    A decision in the same step that depends on the value has to stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice | None:
    if finding.facts["to_host"] != finding.facts["num"]:
        return None
    name = "output" if program.trains is False else "loss"
    return Advice(
        before=f"value = {name}.cpu()",
        after="from diagnose.kernels.deferred_metrics import DeferredMetrics\n\n"
        f"metrics = DeferredMetrics()\nmetrics.push(step, {name}={name})   # arrives one step later",
        least=0.3,
    )


CHANGE = Change(
    id="defer-readback",
    title="Read results back one step later, without waiting",
    numerics=identical(", one step later"),
    patch=ByHand("the script itself copies the result back; only its author can read it later"),
    edit=ByHand("what is done with the copied result only the script's author knows"),
    advice=_advice,
    remedy="diagnose.kernels.deferred_metrics",
)
