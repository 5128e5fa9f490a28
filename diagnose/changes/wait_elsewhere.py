"""Move a wait out of the training thread.

What it does
    Lets background threads wait, so many steps ahead that the result is there when it is asked for.

What to watch
    What a thread reads must not depend on the steps that run meanwhile. Of the wait stays what n threads leave of it,
    wait/n beyond the rest of the step, and at most 0.2 ms of each step for handing the result over: measured with
    Python's own executor, 90 µs in the median and 0.2 ms at the 90th percentile on two busy cores.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import own_place
from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

MAX_THREADS = 16
HANDOVER_NS = 200_000  # from one thread to another; measured, see above


def _advice(finding: Finding, step_ns: float, _program: Program) -> Advice:
    place = own_place(finding)
    rest_ns = max(step_ns - finding.lost_ns, 1.0)
    threads = max(1, min(math.ceil(finding.lost_ns / rest_ns), MAX_THREADS))
    left_ns = max(finding.lost_ns / threads - rest_ns, 0.0) + HANDOVER_NS
    ahead = "one step" if threads == 1 else f"{threads} steps"
    return Advice(
        before=(place.code or "") if place else "",
        after="from concurrent.futures import ThreadPoolExecutor\n\n"
        f"background = ThreadPoolExecutor({threads})\n"
        f"pending = background.submit(fetch)   # what waits, {ahead} ahead\n"
        "value = pending.result()             # ready by now",
        least=max(0.0, 1 - left_ns / max(finding.lost_ns, 1.0)),
    )


CHANGE = Change(
    id="wait-elsewhere",
    title="Move the wait out of the training thread",
    numerics=identical("where the result does not depend on this step"),
    patch=ByHand("the script itself waits at that line"),
    edit=ByHand("what the script waits for at that line only its author knows"),
    is_moved=True,
    advice=_advice,
    without_remedy="a line of the script's own Python",
)
