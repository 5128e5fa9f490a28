"""Start an exchange early and compute beside it.

What it does
    Makes the exchange asynchronous, computes what does not need it, and waits where its result is used.

What to watch
    Ranks that arrive at different times wait for each other whatever the order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    if not finding.facts.get("is_exchange"):
        return None
    call = "all_gather_into_tensor" if finding.facts.get("gathers") else "all_to_all_single"
    return Advice(
        before=f"dist.{call}(out, mine)\ndense = bottom(x)",
        after=f"work = dist.{call}(out, mine, async_op=True)\n"
        "dense = bottom(x)            # does not need the exchanged rows\n"
        "work.wait()                  # queues a wait on the device, the host goes on",
        least=0.1,
        most=0.8,
        needs="work that does not depend on the exchange; and ranks that arrive at it together",
    )


CHANGE = Change(
    id="overlap-exchange",
    title="Start the collective with async_op=True and compute before waiting for it",
    numerics=identical(),
    patch=ByHand("which work does not need the exchange only the script's author knows"),
    edit=ByHand("which work does not need the exchange only the script's author knows"),
    advice=_advice,
    without_remedy="two calls of torch in another order",
)
