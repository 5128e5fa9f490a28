"""Move a wait out of the training thread.

What it does
    Lets a background thread wait, one step ahead, so that the result is there when it is asked for.

What to watch
    What the thread reads must not depend on the step that runs meanwhile. At least four fifths of the wait are gone:
    handing a result from one thread to another takes microseconds, and what is left is a wait longer than a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import own_place
from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    place = own_place(finding)
    return Advice(
        before=(place.code or "") if place else "",
        after="from concurrent.futures import ThreadPoolExecutor\n\n"
        "background = ThreadPoolExecutor(1)\n"
        "pending = background.submit(wait_for_it)   # one step ahead\n"
        "value = pending.result()                   # ready by now",
        least=0.8,
    )


CHANGE = Change(
    id="wait-elsewhere",
    title="Move the wait out of the training thread",
    numerics=identical("where the result does not depend on this step"),
    patch=ByHand("the script itself waits at that line"),
    edit=ByHand("what the script waits for at that line only its author knows"),
    advice=_advice,
    without_remedy="a line of the script's own Python",
)
