"""Let the device have its clock.

What it does
    Names what lowers the clock, power or temperature, and raises the power limit where the board allows it.

What to watch
    Only the machine's administrator can change it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice | None:
    if finding.facts.get("at_most"):
        return None
    needs = "the machine's administrator"
    if program.vendor == "AMD":
        before = "rocm-smi --showpower --showmaxpower --showtemp"
        return Advice(before=before, after="sudo rocm-smi --setpoweroverdrive WATTS", needs=needs)
    return Advice(
        before="nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE",
        after="sudo nvidia-smi -pl WATTS   # at most what -q -d POWER calls the maximum",
        needs=needs,
    )


CHANGE = Change(
    id="lift-the-limit",
    title="Restore the device's clock: power limit and cooling",
    numerics=identical(),
    patch=ByHand("only the machine's administrator can change it"),
    edit=ByHand("it is a setting of the machine"),
    advice=_advice,
    without_remedy="a command of the machine",
)
