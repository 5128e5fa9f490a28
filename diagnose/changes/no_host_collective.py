"""Take a barrier or an object collective out of the loop.

What it does
    Lets ranks meet only where they must, and reduces numbers to log on the device without waiting for them.

What to watch
    What relies on all ranks being at the same step, such as a checkpoint, keeps its barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

_MEET_SELDOM = Advice(
    before="dist.barrier()                       # every step",
    after="if step % 100 == 0:                  # only where ranks must meet, such as before a checkpoint\n"
    "    dist.barrier()\n"
    "# numbers to log: reduce a tensor on the device without waiting\n"
    "work = dist.all_reduce(value, async_op=True)\n"
    "work.wait()   # later, before the value is read: only the device waits",
    least=0.6,
    needs="nothing that relies on all ranks being at the same step",
)


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    return None if finding.facts.get("of_host_backend") else _MEET_SELDOM


CHANGE = Change(
    id="no-host-collective",
    title="Take the barrier or object collective out of the loop, or reduce on the device",
    numerics=identical(),
    patch=ByHand("the script itself waits for the other ranks at that line"),
    edit=ByHand("what the wait is for only the script's author knows"),
    advice=_advice,
    without_remedy="one call in place of another of torch",
)
