"""Let the device have its clock.

What it does
    Names what lowers the clock, power or temperature, and raises the power limit where the board allows it.

What to watch
    Only the machine's administrator can change it.
"""

from __future__ import annotations

from diagnose.changes.common.change import Advice, ByHand, Change, identical

CHANGE = Change(
    id="lift-the-limit",
    title="Let the device have its clock: power limit and cooling",
    numerics=identical(),
    patch=ByHand("only the machine's administrator can change it"),
    edit=ByHand("it is a setting of the machine"),
    advice=Advice(
        before="nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE",
        after="sudo nvidia-smi -pl WATTS   # at most what -q -d POWER calls the maximum",
        needs="the machine's administrator",
    ),
    without_remedy="a command of the machine",
)
